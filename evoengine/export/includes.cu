#include <cuda_runtime.h>

#include <cmath>
#ifndef EVO_NO_MAIN
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>
#endif

// ---- self-check: compile without -DEVO_NO_MAIN for a program that checks the kernel against fp64 and times it --------------
#ifndef EVO_NO_MAIN
// nvcc does not optimise host code by default, and the CPU reference would be slow.
#if defined(__GNUC__) && !defined(__clang__)
#pragma nv_diag_suppress 1675  // nvcc's front end does not know the pragma, which is meant for the host compiler
#pragma GCC optimize("O2", "tree-vectorize")
#pragma nv_diag_default 1675
#endif

#define EVO_CHECK(call)                                                                                   \
    do {                                                                                                  \
        const cudaError_t error_ = (call);                                                                \
        if (error_ != cudaSuccess) {                                                                      \
            std::fprintf(stderr, "ERROR %s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
            std::exit(evo_check::CUDA_ERROR);                                                             \
        }                                                                                                 \
    } while (0)

namespace evo_check {

enum ExitCode { PASSED = 0, WRONG = 1, CUDA_ERROR = 2, NO_GPU = 3 };  // of the program

using Element = std::conditional_t<EvoProblem::IS_BF16, __nv_bfloat16, __half>;
constexpr int D = EvoProblem::HEAD_DIM;
constexpr int CALLS_PER_GRAPH = 20;
constexpr int WARM_UPS = 10;
constexpr int REPLAYS = 60;
constexpr double MAX_MACS = 4e9;           // for larger problems only some query rows are compared with the CPU
constexpr double ABSOLUTE_TOLERANCE = 1e-5;
constexpr double LSE_TOLERANCE = 1e-4;     // of 1 + |log-sum-exp|, which is kept in f32

inline float to_float(__half x) { return __half2float(x); }
inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
inline void assign(__half& target, float x) { target = __float2half(x); }
inline void assign(__nv_bfloat16& target, float x) { target = __float2bfloat16(x); }
inline Element round_to_element(float x) {
    Element rounded;
    assign(rounded, x);
    return rounded;
}

// Sizes of a call: the lengths of its sequences, all equal unless they are packed.
struct Shape {
    const char* name;
    int heads, kv_heads;
    std::vector<int> lengths_q, lengths_kv;
    bool rows_outside_heads;  // memory order [batch, rows, heads, head_dim] instead of [batch, heads, rows, head_dim]
    double scale;

    int batch() const { return static_cast<int>(lengths_q.size()); }
    int memory_batch() const { return EvoProblem::PACKED ? 1 : batch(); }
    int seq_q() const { return *std::max_element(lengths_q.begin(), lengths_q.end()); }
    int seq_kv() const { return *std::max_element(lengths_kv.begin(), lengths_kv.end()); }
    int rows_q() const { return EvoProblem::PACKED ? starts(lengths_q).back() : seq_q(); }
    int rows_kv() const { return EvoProblem::PACKED ? starts(lengths_kv).back() : seq_kv(); }

    // First row of each sequence, and the end of the last one: cu_seqlens of PACKED kernels.
    static std::vector<int> starts(const std::vector<int>& lengths) {
        std::vector<int> result(1, 0);
        for (const int length : lengths) result.push_back(result.back() + length);
        return result;
    }
    EvoStrides strides(int head_count, int rows) const {
        if (!rows_outside_heads) return evo_contiguous(head_count, rows);
        return {static_cast<long long>(rows) * head_count * D, D, head_count * D};
    }
    EvoStrides q_strides() const { return strides(heads, rows_q()); }
    EvoStrides kv_strides() const { return strides(kv_heads, rows_kv()); }
    // Element offset of a sequence's first row, head 0.
    static size_t offset(const std::vector<int>& lengths, const EvoStrides& strides, int sequence) {
        return EvoProblem::PACKED ? starts(lengths)[sequence] * static_cast<size_t>(strides.row) : sequence * strides.batch;
    }
    // Offset of a row's log-sum-exp.
    size_t lse_offset(int sequence, int head, int row) const {
        const size_t first = EvoProblem::PACKED ? starts(lengths_q)[sequence] : 0;
        const size_t block = EvoProblem::PACKED ? head : static_cast<size_t>(sequence) * heads + head;
        return block * rows_q() + first + row;
    }
    size_t row_count() const { return static_cast<size_t>(memory_batch()) * heads * rows_q(); }
    size_t q_count() const { return row_count() * D; }
    size_t kv_count() const { return static_cast<size_t>(memory_batch()) * kv_heads * rows_kv() * D; }
};

struct Inputs {
    std::vector<Element> q, k, v;
    std::vector<float> sink;
};

// Standard normal values, as from torch.randn.
Inputs draw(const Shape& shape, unsigned long long seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    auto fill = [&](std::vector<Element>& tensor, size_t count) {
        tensor.resize(count);
        for (Element& x : tensor) x = round_to_element(normal(generator));
    };
    Inputs inputs;
    fill(inputs.q, shape.q_count());
    fill(inputs.k, shape.kv_count());
    fill(inputs.v, shape.kv_count());
    for (int head = 0; head < shape.heads; ++head) inputs.sink.push_back(normal(generator));
    return inputs;
}

template <typename T>
std::vector<T> on_host(const std::vector<Element>& tensor) {
    std::vector<T> values(tensor.size());
    for (size_t i = 0; i < tensor.size(); ++i) values[i] = static_cast<T>(to_float(tensor[i]));
    return values;
}

struct Reference {
    std::vector<double> rows;          // [checked rows][D], fp64
    std::vector<size_t> offsets;       // element offset of each checked row in O
    std::vector<double> lse;           // log-sum-exp of each checked row; -inf without logits
    std::vector<size_t> lse_offsets;
    double tolerance = 0;              // twice the error of the same attention in the problem's precision
};

// Computes one output row and returns its log-sum-exp. With T = double it is the reference; with T = float, and P and O
// rounded to the element type, it is the most exact result of tensor cores. The visible keys are [first, end).
// `k` is transposed per head, [D][keys], so that both loops vectorise.
template <typename T>
T attend_row(const T* q, const T* k_transposed, const T* v, long long v_row, int keys, int first, int end, T scale, T sink,
             bool rounded, T* p, T* out) {
    std::fill(out, out + D, T(0));
    end = std::max(first, end);
    std::fill(p + first, p + end, T(0));
    for (int d = 0; d < D; ++d) {
        const T* k_row = k_transposed + static_cast<size_t>(d) * keys;
        for (int j = first; j < end; ++j) p[j] += q[d] * k_row[j];
    }
    auto narrow = [rounded](T x) { return rounded ? static_cast<T>(to_float(round_to_element(static_cast<float>(x)))) : x; };
    const T cap = static_cast<T>(EvoProblem::SOFTCAP);
    for (int j = first; j < end; ++j) p[j] = EvoProblem::HAS_SOFTCAP ? cap * std::tanh(p[j] * scale / cap) : p[j] * scale;
    T maximum = EvoProblem::HAS_SINK ? sink : -std::numeric_limits<T>::infinity();
    for (int j = first; j < end; ++j) maximum = std::max(maximum, p[j]);
    if (std::isinf(maximum)) return maximum;  // neither key nor sink: the row yields zeros
    T sum = EvoProblem::HAS_SINK ? std::exp(sink - maximum) : T(0);
    for (int j = first; j < end; ++j) sum += p[j] = std::exp(p[j] - maximum);
    for (int j = first; j < end; ++j) {
        const T weight = narrow(p[j] / sum);
        for (int d = 0; d < D; ++d) out[d] += weight * v[j * v_row + d];
    }
    for (int d = 0; d < D; ++d) out[d] = narrow(out[d]);
    return maximum + std::log(sum);
}

template <typename T>
std::vector<T> transposed_head(const std::vector<T>& k, size_t offset, const EvoStrides& strides, int keys) {
    std::vector<T> result(static_cast<size_t>(D) * keys);
    for (int j = 0; j < keys; ++j)
        for (int d = 0; d < D; ++d) result[static_cast<size_t>(d) * keys + j] = k[offset + static_cast<size_t>(j) * strides.row + d];
    return result;
}

// fp64 attention on the CPU, and the tolerance by FlashAttention's rule (max|out - ref| <= 2 max|same precision - ref|).
Reference reference(const Shape& shape, const Inputs& inputs) {
    using P = EvoProblem;
    const auto q64 = on_host<double>(inputs.q), k64 = on_host<double>(inputs.k), v64 = on_host<double>(inputs.v);
    const auto q32 = on_host<float>(inputs.q), k32 = on_host<float>(inputs.k), v32 = on_host<float>(inputs.v);
    const EvoStrides sq = shape.q_strides(), skv = shape.kv_strides();
    double macs = 0;
    for (int b = 0; b < shape.batch(); ++b) macs += 2.0 * shape.lengths_q[b] * shape.lengths_kv[b] * shape.heads * D;
    const int step = std::max(1, static_cast<int>(std::ceil(macs / MAX_MACS)));
    std::vector<double> p64(shape.seq_kv());
    std::vector<float> p32(shape.seq_kv());
    double rounding_error = 0;
    Reference result;
    for (int b = 0; b < shape.batch(); ++b)
        for (int h = 0; h < shape.heads; ++h) {
            const int queries = shape.lengths_q[b], keys = shape.lengths_kv[b];
            const size_t kv = Shape::offset(shape.lengths_kv, skv, b) + h / (shape.heads / shape.kv_heads) * skv.head;
            const auto kt64 = transposed_head(k64, kv, skv, keys);
            const auto kt32 = transposed_head(k32, kv, skv, keys);
            for (int row = (b + h) % step; row < queries; row += step) {
                const size_t at = Shape::offset(shape.lengths_q, sq, b) + h * sq.head + static_cast<size_t>(row) * sq.row;
                const int diagonal = row + keys - queries;
                const int right = P::CAUSAL ? 0 : P::WINDOW_RIGHT;
                const int first = P::HAS_WINDOW_LEFT ? std::max(0, diagonal - P::WINDOW_LEFT) : 0;
                const int end = P::CAUSAL || P::HAS_WINDOW_RIGHT ? std::min(keys, diagonal + right + 1) : keys;
                double exact[D];
                float rounded[D];
                const float sink = inputs.sink[h];
                result.lse.push_back(attend_row<double>(&q64[at], kt64.data(), v64.data() + kv, skv.row, keys, first, end,
                                                        shape.scale, sink, false, p64.data(), exact));
                attend_row<float>(&q32[at], kt32.data(), v32.data() + kv, skv.row, keys, first, end, shape.scale, sink, true,
                                  p32.data(), rounded);
                for (int d = 0; d < D; ++d) rounding_error = std::max(rounding_error, std::fabs(rounded[d] - exact[d]));
                result.rows.insert(result.rows.end(), exact, exact + D);
                result.offsets.push_back(at);
                result.lse_offsets.push_back(shape.lse_offset(b, h, row));
            }
        }
    result.tolerance = 2 * rounding_error + ABSOLUTE_TOLERANCE;
    return result;
}

struct Outputs {
    std::vector<Element> o;
    std::vector<float> lse;
    std::vector<unsigned> counters;
};

// Device buffers of one call, with its shape.
struct Tensors {
    Shape shape;
    Element *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;
    int *cu_seqlens_q = nullptr, *cu_seqlens_kv = nullptr;
    float* sink = nullptr;
    EvoExtras extras;

    Tensors(const Shape& s, const Inputs& inputs) : shape(s) {
        upload(q, inputs.q);
        upload(k, inputs.k);
        upload(v, inputs.v);
        upload(sink, inputs.sink);
        upload(cu_seqlens_q, Shape::starts(shape.lengths_q));
        upload(cu_seqlens_kv, Shape::starts(shape.lengths_kv));
        EVO_CHECK(cudaMalloc(&o, shape.q_count() * sizeof(Element)));
        extras.sink = sink;
        extras.cu_seqlens_q = cu_seqlens_q;
        extras.cu_seqlens_kv = cu_seqlens_kv;
        extras.rows_q = shape.rows_q();
        extras.rows_kv = shape.rows_kv();
        EVO_CHECK(cudaMalloc(&extras.lse, shape.row_count() * sizeof(float)));
        const evo_host::Sizes sizes = call_sizes();
        if (sizes.workspace_bytes() > 0) EVO_CHECK(cudaMalloc(&extras.workspace, sizes.workspace_bytes()));
        if (sizes.counters() > 0) {
            EVO_CHECK(cudaMalloc(&extras.counters, sizes.counters() * sizeof(unsigned)));
            EVO_CHECK(cudaMemset(extras.counters, 0, sizes.counters() * sizeof(unsigned)));
        }
    }
    ~Tensors() {
        for (void* pointer : {static_cast<void*>(q), static_cast<void*>(k), static_cast<void*>(v), static_cast<void*>(o),
                              static_cast<void*>(sink), static_cast<void*>(cu_seqlens_q), static_cast<void*>(cu_seqlens_kv),
                              static_cast<void*>(extras.lse), extras.workspace, static_cast<void*>(extras.counters)})
            cudaFree(pointer);
    }
    Tensors(const Tensors&) = delete;
    Tensors& operator=(const Tensors&) = delete;

    template <typename T>
    static void upload(T*& target, const std::vector<T>& source) {
        EVO_CHECK(cudaMalloc(&target, source.size() * sizeof(T)));
        EVO_CHECK(cudaMemcpy(target, source.data(), source.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    evo_host::Sizes call_sizes() const {
        return evo_sizes(shape.batch(), shape.heads, shape.kv_heads, shape.seq_q(), shape.seq_kv(), extras);
    }
    void launch(cudaStream_t stream) const {
        EVO_CHECK(evo_attention_launch(q, k, v, o, shape.batch(), shape.heads, shape.kv_heads, shape.seq_q(), shape.seq_kv(),
                                       shape.q_strides(), shape.kv_strides(), shape.kv_strides(), shape.q_strides(),
                                       static_cast<float>(shape.scale), stream, extras));
    }
    // Runs once into outputs and a workspace full of NaN, so that unwritten or prematurely read elements fail the check.
    Outputs run(cudaStream_t stream) const {
        EVO_CHECK(cudaMemsetAsync(o, 0xff, shape.q_count() * sizeof(Element), stream));
        EVO_CHECK(cudaMemsetAsync(extras.lse, 0xff, shape.row_count() * sizeof(float), stream));
        const long long workspace_bytes = call_sizes().workspace_bytes();
        if (workspace_bytes > 0) EVO_CHECK(cudaMemsetAsync(extras.workspace, 0xff, workspace_bytes, stream));
        launch(stream);
        Outputs outputs;
        fetch(outputs.o, o, shape.q_count(), stream);
        if (EvoProblem::HAS_LSE) fetch(outputs.lse, extras.lse, shape.row_count(), stream);
        fetch(outputs.counters, extras.counters, call_sizes().counters(), stream);
        return outputs;
    }
    template <typename T>
    static void fetch(std::vector<T>& target, const T* source, size_t count, cudaStream_t stream) {
        target.resize(count);
        EVO_CHECK(cudaStreamSynchronize(stream));
        if (count == 0) return;
        EVO_CHECK(cudaMemcpy(target.data(), source, count * sizeof(T), cudaMemcpyDeviceToHost));
    }
};

// Largest absolute error over the checked rows; infinity when an element of O is not finite, a log-sum-exp is wrong, or a
// counter is not zero.
double max_error(const Outputs& outputs, const Reference& reference) {
    constexpr double INFINITE = std::numeric_limits<double>::infinity();
    for (const Element x : outputs.o)
        if (!std::isfinite(to_float(x))) return INFINITE;
    for (const unsigned counter : outputs.counters)
        if (counter != 0) return INFINITE;
    double error = 0;
    for (size_t row = 0; row < reference.offsets.size(); ++row)
        for (int d = 0; d < D; ++d)
            error = std::max(error, std::fabs(to_float(outputs.o[reference.offsets[row] + d]) - reference.rows[row * D + d]));
    for (size_t row = 0; row < reference.lse.size() && !outputs.lse.empty(); ++row) {
        const double got = outputs.lse[reference.lse_offsets[row]], want = reference.lse[row];
        const bool ok = std::isinf(want) ? got == want : std::fabs(got - want) <= LSE_TOLERANCE * (1 + std::fabs(want));
        if (!ok) return INFINITE;
    }
    return error;
}

struct Verdict {
    bool passed = true;
    double error = 0;
    double tolerance = 0;
    double worst_ratio = -1;

    void add(const char* name, double case_error, const Reference& reference, size_t all_rows) {
        const bool ok = case_error <= reference.tolerance;
        std::printf("%-12s max_error=%.3e tolerance=%.3e rows=%zu/%zu %s\n", name, case_error, reference.tolerance,
                    reference.offsets.size(), all_rows, ok ? "ok" : "WRONG");
        passed = passed && ok;
        if (case_error / reference.tolerance > worst_ratio) {
            worst_ratio = case_error / reference.tolerance;
            error = case_error;
            tolerance = reference.tolerance;
        }
    }
};

// Microseconds per call, sorted: REPLAYS graphs of CALLS_PER_GRAPH launches on warm data, each timed by a pair of events.
std::vector<float> time_by_graph(const Tensors& tensors, cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    EVO_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int call = 0; call < CALLS_PER_GRAPH; ++call) tensors.launch(stream);
    EVO_CHECK(cudaStreamEndCapture(stream, &graph));
    EVO_CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
    cudaEvent_t start, stop;
    EVO_CHECK(cudaEventCreate(&start));
    EVO_CHECK(cudaEventCreate(&stop));
    for (int i = 0; i < WARM_UPS; ++i) EVO_CHECK(cudaGraphLaunch(executable, stream));
    std::vector<float> samples;
    for (int i = 0; i < REPLAYS; ++i) {
        float milliseconds = 0;
        EVO_CHECK(cudaEventRecord(start, stream));
        EVO_CHECK(cudaGraphLaunch(executable, stream));
        EVO_CHECK(cudaEventRecord(stop, stream));
        EVO_CHECK(cudaEventSynchronize(stop));
        EVO_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
        samples.push_back(milliseconds * 1000 / CALLS_PER_GRAPH);
    }
    EVO_CHECK(cudaEventDestroy(start));
    EVO_CHECK(cudaEventDestroy(stop));
    EVO_CHECK(cudaGraphExecDestroy(executable));
    EVO_CHECK(cudaGraphDestroy(graph));
    std::sort(samples.begin(), samples.end());
    return samples;
}

// The problem itself, and a small ragged case in another memory order with another softmax scale, which hosts may set freely.
Shape own_shape() {
    using P = EvoProblem;
    std::vector<int> lengths_q(P::BATCH, P::SEQ_Q), lengths_kv(P::BATCH, P::SEQ_KV);
    if (P::PACKED) {
        lengths_q.assign(std::begin(P::LENGTHS_Q), std::end(P::LENGTHS_Q));
        lengths_kv.assign(std::begin(P::LENGTHS_KV), std::end(P::LENGTHS_KV));
    }
    return {"problem", P::HEADS, P::KV_HEADS, lengths_q, lengths_kv, false, 1 / std::sqrt(static_cast<double>(D))};
}
Shape ragged_shape() {
    const int heads = EvoProblem::HEADS / EvoProblem::KV_HEADS * 2;
    constexpr double SCALE = -0.3;
    if (EvoProblem::PACKED) return {"ragged", heads, 2, {173, 0, 1, 90, 77}, {205, 31, 150, 0, 40}, true, SCALE};
    return {"ragged", heads, 2, {173, 173}, {205, 205}, true, SCALE};
}

// Returns the first GPU; ends the program where there is none that can run the kernel.
cudaDeviceProp find_gpu() {
    int count = 0;
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found == cudaErrorNoDevice || found == cudaErrorInsufficientDriver || found == cudaErrorStubLibrary) {
        std::fprintf(stderr, "ERROR no NVIDIA GPU or driver: %s\n", cudaGetErrorString(found));
        std::exit(NO_GPU);
    }
    EVO_CHECK(found);
    cudaDeviceProp device;
    EVO_CHECK(cudaGetDeviceProperties(&device, 0));
    cudaFuncAttributes attributes;
    const cudaError_t loaded = cudaFuncGetAttributes(&attributes, evo_attention);
    if (loaded == cudaErrorNoKernelImageForDevice || loaded == cudaErrorInvalidDeviceFunction ||
        loaded == cudaErrorUnsupportedPtxVersion) {
        std::fprintf(stderr, "ERROR this program holds no code for %s: compile it with nvcc -arch=sm_%d%d\n", device.name,
                     device.major, device.minor);
        std::exit(NO_GPU);
    }
    EVO_CHECK(loaded);
    return device;
}

int check_and_time(unsigned long long seed) {
    using P = EvoProblem;
    const Shape own = own_shape(), ragged = ragged_shape();

    const cudaDeviceProp device = find_gpu();
    std::printf("%s on %s (sm_%d%d), seed %llu\n", P::NAME, device.name, device.major, device.minor, seed);
    cudaStream_t stream;
    EVO_CHECK(cudaStreamCreate(&stream));

    Verdict verdict;
    {
        const Inputs inputs = draw(ragged, seed + 1);
        const Reference truth = reference(ragged, inputs);
        verdict.add(ragged.name, max_error(Tensors(ragged, inputs).run(stream), truth), truth, ragged.row_count());
    }
    const Inputs inputs = draw(own, seed);
    const Reference truth = reference(own, inputs);
    const Tensors tensors(own, inputs);
    verdict.add(own.name, max_error(tensors.run(stream), truth), truth, own.row_count());

    std::vector<float> samples;
    if (verdict.passed) {  // only a correct kernel is timed, and it is checked again afterwards
        samples = time_by_graph(tensors, stream);
        verdict.add("after timing", max_error(tensors.run(stream), truth), truth, own.row_count());
    }
    EVO_CHECK(cudaStreamDestroy(stream));
    if (!verdict.passed) {
        std::printf("FAIL max_error=%.3e tolerance=%.3e\n", verdict.error, verdict.tolerance);
        return WRONG;
    }
    const size_t n = samples.size();
    const double median = (samples[(n - 1) / 2] + samples[n / 2]) / 2.0;
    std::printf("PASS max_error=%.3e tolerance=%.3e median_us=%.3f p10_us=%.3f p90_us=%.3f calls_per_graph=%d replays=%zu\n",
                verdict.error, verdict.tolerance, median, samples[n / 10], samples[n - 1 - n / 10], CALLS_PER_GRAPH, n);
    return PASSED;
}

}  // namespace evo_check

int main(int argc, char** argv) {
    const unsigned long long now = std::chrono::system_clock::now().time_since_epoch().count();
    return evo_check::check_and_time(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : now);
}
#endif  // EVO_NO_MAIN

// ---- self-check: compile without -DEVO_NO_MAIN for a program that checks the kernel against fp64 and times it --------------
#ifndef EVO_NO_MAIN
// nvcc does not optimise host code unless told, and the CPU reference is slow without.
#if defined(__GNUC__) && !defined(__clang__)
#pragma nv_diag_suppress 1675  // nvcc's own front end does not know the pragma that it hands on to the host compiler
#pragma GCC optimize("O2", "tree-vectorize")
#pragma nv_diag_default 1675
#endif

#define EVO_CHECK(call)                                                                                   \
    do {                                                                                                  \
        const cudaError_t error_ = (call);                                                                \
        if (error_ != cudaSuccess) {                                                                      \
            std::fprintf(stderr, "ERROR %s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
            std::exit(2);                                                                                 \
        }                                                                                                 \
    } while (0)

namespace evo_check {

using Element = std::conditional_t<EvoProblem::IS_BF16, __nv_bfloat16, __half>;
constexpr int D = EvoProblem::HEAD_DIM;
constexpr int CALLS_PER_GRAPH = 20;
constexpr int WARM_UPS = 10;
constexpr int REPLAYS = 60;
constexpr double MAX_MACS = 4e9;           // above it only some query rows are compared with the CPU
constexpr double ABSOLUTE_TOLERANCE = 1e-5;

inline float to_float(__half x) { return __half2float(x); }
inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
inline void assign(__half& target, float x) { target = __float2half(x); }
inline void assign(__nv_bfloat16& target, float x) { target = __float2bfloat16(x); }
inline Element round_to_element(float x) {
    Element rounded;
    assign(rounded, x);
    return rounded;
}

struct Shape {
    const char* name;
    int batch, heads, kv_heads, seq_q, seq_kv;
    bool rows_outside_heads;  // memory order [batch, rows, heads, head_dim] instead of [batch, heads, rows, head_dim]

    EvoStrides strides(int head_count, int rows) const {
        if (!rows_outside_heads) return evo_contiguous(head_count, rows);
        return {static_cast<long long>(rows) * head_count * D, D, head_count * D};
    }
    EvoStrides q_strides() const { return strides(heads, seq_q); }
    EvoStrides kv_strides() const { return strides(kv_heads, seq_kv); }
    size_t q_count() const { return static_cast<size_t>(batch) * heads * seq_q * D; }
    size_t kv_count() const { return static_cast<size_t>(batch) * kv_heads * seq_kv * D; }
};

struct Inputs {
    std::vector<Element> q, k, v;
};

// Standard normal values, as torch.randn gives them.
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
    return inputs;
}

template <typename T>
std::vector<T> on_host(const std::vector<Element>& tensor) {
    std::vector<T> values(tensor.size());
    for (size_t i = 0; i < tensor.size(); ++i) values[i] = static_cast<T>(to_float(tensor[i]));
    return values;
}

struct Reference {
    std::vector<double> rows;        // [checked rows][D], fp64
    std::vector<size_t> offsets;     // element offset of each checked row in O
    double tolerance = 0;            // twice the error of the same attention in the problem's own precision
};

// One output row. With T = double it is the truth; with T = float, and P and O rounded to the element type, it is what
// attention on tensor cores yields at best. `k` is transposed per head, [D][seq_kv], so that both loops vectorise.
template <typename T>
void attend_row(const T* q, const T* k_transposed, const T* v, long long v_row, int seq_kv, int visible, bool rounded,
                T* p, T* out) {
    std::fill(out, out + D, T(0));
    if (visible < 1) return;  // a row that sees no key yields zeros
    std::fill(p, p + visible, T(0));
    for (int d = 0; d < D; ++d) {
        const T* k_row = k_transposed + static_cast<size_t>(d) * seq_kv;
        for (int j = 0; j < visible; ++j) p[j] += q[d] * k_row[j];
    }
    auto narrow = [rounded](T x) { return rounded ? static_cast<T>(to_float(round_to_element(static_cast<float>(x)))) : x; };
    const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(D)));
    for (int j = 0; j < visible; ++j) p[j] *= scale;
    const T maximum = *std::max_element(p, p + visible);
    T sum = 0;
    for (int j = 0; j < visible; ++j) sum += p[j] = std::exp(p[j] - maximum);
    for (int j = 0; j < visible; ++j) {
        const T weight = narrow(p[j] / sum);
        for (int d = 0; d < D; ++d) out[d] += weight * v[j * v_row + d];
    }
    for (int d = 0; d < D; ++d) out[d] = narrow(out[d]);
}

template <typename T>
std::vector<T> transposed_head(const std::vector<T>& k, size_t offset, const EvoStrides& strides, int seq_kv) {
    std::vector<T> result(static_cast<size_t>(D) * seq_kv);
    for (int j = 0; j < seq_kv; ++j)
        for (int d = 0; d < D; ++d) result[static_cast<size_t>(d) * seq_kv + j] = k[offset + static_cast<size_t>(j) * strides.row + d];
    return result;
}

// fp64 attention on the CPU, and the tolerance by FlashAttention's rule (max|out - ref| <= 2 max|same precision - ref|).
Reference reference(const Shape& shape, const Inputs& inputs) {
    const auto q64 = on_host<double>(inputs.q), k64 = on_host<double>(inputs.k), v64 = on_host<double>(inputs.v);
    const auto q32 = on_host<float>(inputs.q), k32 = on_host<float>(inputs.k), v32 = on_host<float>(inputs.v);
    const EvoStrides sq = shape.q_strides(), skv = shape.kv_strides();
    const double macs = 2.0 * shape.q_count() * shape.seq_kv;
    const int step = static_cast<int>(std::ceil(macs / MAX_MACS));
    std::vector<double> p64(shape.seq_kv);
    std::vector<float> p32(shape.seq_kv);
    double rounding_error = 0;
    Reference result;
    for (int b = 0; b < shape.batch; ++b)
        for (int h = 0; h < shape.heads; ++h) {
            const size_t kv = b * skv.batch + h / (shape.heads / shape.kv_heads) * skv.head;
            const auto kt64 = transposed_head(k64, kv, skv, shape.seq_kv);
            const auto kt32 = transposed_head(k32, kv, skv, shape.seq_kv);
            for (int row = (b + h) % step; row < shape.seq_q; row += step) {
                const size_t at = b * sq.batch + h * sq.head + static_cast<size_t>(row) * sq.row;
                const int visible =
                    EvoProblem::CAUSAL ? std::min(shape.seq_kv, row + 1 + shape.seq_kv - shape.seq_q) : shape.seq_kv;
                double exact[D];
                float rounded[D];
                attend_row(&q64[at], kt64.data(), &v64[kv], skv.row, shape.seq_kv, visible, false, p64.data(), exact);
                attend_row(&q32[at], kt32.data(), &v32[kv], skv.row, shape.seq_kv, visible, true, p32.data(), rounded);
                for (int d = 0; d < D; ++d) rounding_error = std::max(rounding_error, std::fabs(rounded[d] - exact[d]));
                result.rows.insert(result.rows.end(), exact, exact + D);
                result.offsets.push_back(at);
            }
        }
    result.tolerance = 2 * rounding_error + ABSOLUTE_TOLERANCE;
    return result;
}

// Q, K, V and O on the device, with the shape they belong to.
struct Tensors {
    Shape shape;
    Element *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;

    Tensors(const Shape& s, const Inputs& inputs) : shape(s) {
        upload(q, inputs.q);
        upload(k, inputs.k);
        upload(v, inputs.v);
        EVO_CHECK(cudaMalloc(&o, shape.q_count() * sizeof(Element)));
    }
    ~Tensors() {
        for (Element* pointer : {q, k, v, o}) cudaFree(pointer);
    }
    Tensors(const Tensors&) = delete;
    Tensors& operator=(const Tensors&) = delete;

    static void upload(Element*& target, const std::vector<Element>& source) {
        EVO_CHECK(cudaMalloc(&target, source.size() * sizeof(Element)));
        EVO_CHECK(cudaMemcpy(target, source.data(), source.size() * sizeof(Element), cudaMemcpyHostToDevice));
    }
    void launch(cudaStream_t stream) const {
        const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(D)));
        EVO_CHECK(evo_attention_launch(q, k, v, o, shape.batch, shape.heads, shape.kv_heads, shape.seq_q, shape.seq_kv,
                                       shape.q_strides(), shape.kv_strides(), shape.kv_strides(), shape.q_strides(), scale, stream));
    }
    // Runs once into an output full of NaN, so that an element that is never written cannot pass.
    std::vector<Element> run(cudaStream_t stream) const {
        EVO_CHECK(cudaMemsetAsync(o, 0xff, shape.q_count() * sizeof(Element), stream));
        launch(stream);
        return fetch(stream);
    }
    std::vector<Element> fetch(cudaStream_t stream) const {
        std::vector<Element> output(shape.q_count());
        EVO_CHECK(cudaStreamSynchronize(stream));
        EVO_CHECK(cudaMemcpy(output.data(), o, output.size() * sizeof(Element), cudaMemcpyDeviceToHost));
        return output;
    }
};

// Largest absolute error over the checked rows; infinity when any element of the output is not finite.
double max_error(const std::vector<Element>& output, const Reference& reference) {
    for (const Element x : output)
        if (!std::isfinite(to_float(x))) return std::numeric_limits<double>::infinity();
    double error = 0;
    for (size_t row = 0; row < reference.offsets.size(); ++row)
        for (int d = 0; d < D; ++d)
            error = std::max(error, std::fabs(to_float(output[reference.offsets[row] + d]) - reference.rows[row * D + d]));
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

int check_and_time(unsigned long long seed) {
    using P = EvoProblem;
    const Shape own = {"problem", P::BATCH, P::HEADS, P::KV_HEADS, P::SEQ_Q, P::SEQ_KV, false};
    const int group = P::HEADS / P::KV_HEADS;
    const Shape ragged = {"ragged", 2, 2 * group, 2, 173, 205, true};

    cudaDeviceProp device;
    EVO_CHECK(cudaGetDeviceProperties(&device, 0));
    std::printf("%s on %s (sm_%d%d), seed %llu\n", P::NAME, device.name, device.major, device.minor, seed);
    cudaStream_t stream;
    EVO_CHECK(cudaStreamCreate(&stream));

    Verdict verdict;
    {
        const Inputs inputs = draw(ragged, seed + 1);
        const Reference truth = reference(ragged, inputs);
        verdict.add(ragged.name, max_error(Tensors(ragged, inputs).run(stream), truth), truth, ragged.q_count() / D);
    }
    const Inputs inputs = draw(own, seed);
    const Reference truth = reference(own, inputs);
    const Tensors tensors(own, inputs);
    verdict.add(own.name, max_error(tensors.run(stream), truth), truth, own.q_count() / D);

    std::vector<float> samples;
    if (verdict.passed) {  // nothing is timed before it is correct, and it must still be correct afterwards
        samples = time_by_graph(tensors, stream);
        verdict.add("after timing", max_error(tensors.run(stream), truth), truth, own.q_count() / D);
    }
    EVO_CHECK(cudaStreamDestroy(stream));
    if (!verdict.passed) {
        std::printf("FAIL max_error=%.3e tolerance=%.3e\n", verdict.error, verdict.tolerance);
        return 1;
    }
    const size_t n = samples.size();
    const double median = (samples[(n - 1) / 2] + samples[n / 2]) / 2.0;
    std::printf("PASS max_error=%.3e tolerance=%.3e median_us=%.3f p10_us=%.3f p90_us=%.3f calls_per_graph=%d replays=%zu\n",
                verdict.error, verdict.tolerance, median, samples[n / 10], samples[n - 1 - n / 10], CALLS_PER_GRAPH, n);
    return 0;
}

}  // namespace evo_check

int main(int argc, char** argv) {
    const unsigned long long now = std::chrono::system_clock::now().time_since_epoch().count();
    return evo_check::check_and_time(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : now);
}
#endif  // EVO_NO_MAIN

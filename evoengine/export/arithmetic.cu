namespace evo_host {
// Integer arithmetic of the launch expressions: division rounds down, as there.
constexpr long long floor_div(long long a, long long b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0)); }
constexpr long long floor_mod(long long a, long long b) { return a - floor_div(a, b) * b; }
constexpr long long ceil_div(long long a, long long b) { return -floor_div(-a, b); }
constexpr long long round_up(long long a, long long b) { return ceil_div(a, b) * b; }
constexpr long long min_of(long long a, long long b) { return a < b ? a : b; }
constexpr long long max_of(long long a, long long b) { return a > b ? a : b; }
}  // namespace evo_host

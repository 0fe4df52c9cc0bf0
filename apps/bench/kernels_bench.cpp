#include <algorithm>
#include <array>
#include <cstddef>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "gpu/host/memory.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps {
namespace {

using core::DType;

/// Far larger than a last-level cache: each array alone has this size.
constexpr std::size_t kElements = std::size_t{1} << 24;
constexpr int kRounds = 7;

/// What runs, and the minimum bytes it must read and write. A line that is written is counted once, although
/// the processor may read it first; STREAM counts the same way.
struct Case {
  std::string name;
  std::size_t bytes;
  std::function<void()> run;
};

/// The arrays that all cases share, fp32 or viewed as narrower elements, filled with values typical of
/// gradients.
class Arrays {
 public:
  static core::Result<Arrays> create(std::size_t count) {
    Arrays arrays;
    for (std::size_t i = 0; i < count; ++i) {
      arrays.buffers_.push_back(TRY(gpu::allocate_host_memory(kElements * sizeof(float))));
      // The same code twice, so that bf16 has these values too, and no exponents that gradients do not have.
      auto codes = arrays.buffers_.back().view().as<std::uint16_t>();
      for (std::size_t k = 0; k < kElements; ++k) {
        codes[2 * k] = codes[2 * k + 1] =
            core::float_to_bf16(static_cast<float>((k * 7919 + i) % 4096) * 1e-4F);
      }
    }
    return arrays;
  }

  gpu::BufferView view(std::size_t i) const { return buffers_[i].view(); }
  std::span<float> floats(std::size_t i) const { return view(i).as<float>(); }
  gpu::Elements elements(std::size_t i, DType dtype) const {
    return {view(i).subview(0, kElements * core::size_of(dtype)), dtype};
  }

 private:
  std::vector<gpu::Buffer> buffers_;
};

void triad(std::span<float> a, std::span<const float> b, std::span<const float> c) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = b[i] + 3.0F * c[i];
}

std::string between(std::string_view kernel, DType from, DType to) {
  return fmt::format("{} {} to {}", kernel, core::name_of(from), core::name_of(to));
}

void add_elementwise(const Arrays& arrays, std::vector<Case>& cases) {
  const auto add = [&cases](std::string name, std::size_t bytes_per_element, std::function<void()> run) {
    cases.push_back({std::move(name), kElements * bytes_per_element, std::move(run)});
  };
  add("copy", 8, [&] { gpu::copy(arrays.view(1), arrays.view(0)); });
  add("zero", 4, [&] { gpu::zero(arrays.view(0)); });
  add("fill f32", 4, [&] { gpu::fill(arrays.elements(0, DType::f32), 1); });
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto name = fmt::format("scale {}", core::name_of(dtype));
    add(name, 2 * core::size_of(dtype), [&, dtype] { gpu::scale(arrays.elements(0, dtype), 1.0F); });
  }
  const std::vector<std::pair<DType, DType>> sums = {{DType::f32, DType::f32},
                                                     {DType::bf16, DType::f32},
                                                     {DType::f16, DType::f32},
                                                     {DType::bf16, DType::bf16}};
  for (const auto& [from, to] : sums) {
    add(between("accumulate", from, to), core::size_of(from) + 2 * core::size_of(to),
        [&arrays, from = from, to = to] {
          gpu::accumulate(arrays.elements(1, from), arrays.elements(0, to));
        });
  }
  for (const DType narrow : {DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2}) {
    const std::size_t bytes = 4 + core::size_of(narrow);
    add(between("cast", DType::f32, narrow), bytes,
        [&, narrow] { gpu::cast(arrays.elements(1, DType::f32), arrays.elements(0, narrow)); });
    add(between("cast", narrow, DType::f32), bytes,
        [&, narrow] { gpu::cast(arrays.elements(1, narrow), arrays.elements(0, DType::f32)); });
  }
}

void add_reductions(const Arrays& arrays, std::vector<Case>& cases) {
  static constexpr std::array<core::TreeStep, 3> kSteps{{{0, 1}, {2, 3}, {0, 2}}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    gpu::TreeSum sum{.steps = kSteps, .factor = 0.25F, .output = arrays.elements(0, dtype)};
    for (std::size_t i = 1; i <= 4; ++i) sum.slots.push_back(arrays.elements(i, dtype));
    cases.push_back({fmt::format("tree_sum of 4 {}", core::name_of(dtype)),
                     kElements * core::size_of(dtype) * 5, [sum] { gpu::tree_sum(sum); }});
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto values = arrays.elements(1, dtype);
    cases.push_back({fmt::format("raise_to_largest {}", core::name_of(dtype)), values.view.bytes, [values] {
                       std::uint32_t largest = 0;
                       gpu::raise_to_largest(values, gpu::view_of(std::span(&largest, 1)));
                     }});
    cases.push_back({fmt::format("add_squares {}", core::name_of(dtype)), values.view.bytes, [values] {
                       core::ExactSquareSum sum;
                       gpu::add_squares(values, gpu::view_of(std::span(&sum, 1)));
                     }});
  }
}

void add_optimizers(const Arrays& arrays, std::vector<Case>& cases) {
  const gpu::ParameterStep plain{.gradient = arrays.elements(1, DType::f32), .master = arrays.view(0)};
  gpu::ParameterStep mixed = plain;
  mixed.gradient = arrays.elements(1, DType::bf16);
  mixed.parameter = arrays.elements(4, DType::bf16);
  const auto momentum = arrays.view(2);
  const gpu::AdamMoments moments{arrays.view(2), arrays.view(3)};
  // A learning rate of zero, so that values stay typical however often the case runs.
  const gpu::SgdOptions sgd{.learning_rate = 0, .momentum = 0.5};
  const gpu::AdamOptions adam{.learning_rate = 0, .weight_decay = 0.01};
  cases.push_back({"sgd_step with momentum", kElements * 20, [=] { gpu::sgd_step(sgd, plain, momentum); }});
  cases.push_back({"adam_step f32", kElements * 28, [=] { gpu::adam_step(adam, 10, plain, moments); }});
  cases.push_back({"adam_step bf16", kElements * 28, [=] { gpu::adam_step(adam, 10, mixed, moments); }});
}

/// Processor time of this one thread: waiting for memory counts, time that others use on the machine does
/// not.
double seconds_of(const std::function<void()>& run) {
  const std::clock_t begin = std::clock();
  run();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Each run of a case is paired with a run of the triad, so that a busy machine slows both.
nlohmann::json measure(const Case& one, const Case& reference) {
  std::vector<double> bandwidths;
  std::vector<double> ratios;
  one.run();
  for (int round = 0; round < kRounds; ++round) {
    const double triad_bandwidth = static_cast<double>(reference.bytes) / seconds_of(reference.run);
    bandwidths.push_back(static_cast<double>(one.bytes) / seconds_of(one.run));
    ratios.push_back(bandwidths.back() / triad_bandwidth);
  }
  return {{"kernel", one.name},
          {"bytes", one.bytes},
          {"bytes_per_second", median(bandwidths)},
          {"of_triad", median(ratios)}};
}

int run(bool json) {
  const auto arrays = Arrays::create(6);
  if (!arrays) {
    fmt::print(stderr, "{}\n", arrays.error().message);
    return 1;
  }
  std::vector<Case> cases;
  add_elementwise(*arrays, cases);
  add_reductions(*arrays, cases);
  add_optimizers(*arrays, cases);
  const Case reference{"triad", kElements * 12,
                       [&] { triad(arrays->floats(5), arrays->floats(1), arrays->floats(2)); }};
  auto results = nlohmann::json::array();
  for (const auto& one : cases) {
    results.push_back(measure(one, reference));
    const auto& result = results.back();
    if (json) continue;
    fmt::print("{:28} {:6.2f} GB/s {:5.0f} % of triad\n", one.name,
               result["bytes_per_second"].get<double>() / 1e9, result["of_triad"].get<double>() * 100);
    std::fflush(stdout);
  }
  if (json) fmt::print("{}\n", results.dump());
  return 0;
}

}  // namespace
}  // namespace troupe::apps

/// Prints the bandwidth of each kernel on one thread, and its ratio to a STREAM triad run at the same time.
int main(int argc, char** argv) {
  return troupe::apps::run(argc > 1 && std::string_view(argv[1]) == "--json");
}

#include "apps/troupe/bench/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "apps/command_line/command_line.hpp"
#include "apps/command_line/options.hpp"
#include "apps/command_line/say.hpp"
#include "core/errors.hpp"
#include "core/exact_sum.hpp"
#include "core/plan/lanes.hpp"
#include "gpu/devices.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps {
namespace {

using core::DType;
using core::Result;

constexpr auto kDeadline = std::chrono::seconds(60);
constexpr std::size_t kChunkBytes = std::size_t{8} << 20;  // as checkpoints are staged
constexpr int kPartials = 4;

struct Candidate {
  std::string name;
  std::size_t bytes = 0;
  std::string against;  ///< the name of another candidate
  std::function<void(gpu::StreamView)> call;
  std::vector<double> seconds{};
};

/// The memory of a measurement, and what is measured on it.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> create(const KernelBench& options) {
    auto bench = std::make_unique<Bench>();
    bench->bytes_ = options.mib << 20;
    if (options.mib == 0 || options.repeats < 1)
      return core::fail(core::Errc::invalid_argument, "measure at least 1 MiB, at least once");
    bench->device_ = TRY(gpu::open_device(options.device));
    for (auto& buffer : bench->memory_) buffer = TRY(bench->device_->allocate(bench->bytes_));
    bench->squares_ = TRY(bench->device_->allocate(sizeof(core::ExactSquareSum)));
    bench->staging_ = TRY(bench->device_->allocate_staging(bench->bytes_));
    bench->stream_ = TRY(bench->device_->create_stream({"bench", 0}));
    TRY(bench->fill());
    std::vector<core::LaneRange> lanes;
    for (int lane = 0; lane < kPartials; ++lane) lanes.push_back({lane, 1});
    bench->steps_ = core::finishing_program(lanes);
    bench->collect();
    return bench;
  }

  Result<std::vector<KernelTime>> run(int repeats) {
    for (auto& candidate : candidates_) TRY(time(candidate, 1));
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (auto& candidate : candidates_) {
        const auto once = TRY(time(candidate, 1));
        // Long enough for the clock and for what launching costs.
        const int calls = std::clamp(static_cast<int>(0.02 / std::max(once, 1e-6)), 1, 200);
        candidate.seconds.push_back(TRY(time(candidate, calls)));
      }
    }
    std::vector<KernelTime> times;
    for (const auto& candidate : candidates_)
      times.push_back({candidate.name, candidate.bytes, median(candidate), 0});
    for (std::size_t i = 0; i < times.size(); ++i) {
      const auto base = std::find_if(times.begin(), times.end(),
                                     [&](const auto& time) { return time.name == candidates_[i].against; });
      times[i].ratio = bandwidth(times[i]) / bandwidth(*base);
    }
    return times;
  }

 private:
  static double median(const Candidate& candidate) {
    auto sorted = candidate.seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  static double bandwidth(const KernelTime& time) { return static_cast<double>(time.bytes) / time.seconds; }

  /// Seconds of one call.
  Result<double> time(Candidate& candidate, int calls) {
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) candidate.call(stream_.get());
    TRY(stream_->synchronize(kDeadline));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
  }

  /// Values like those of gradients, in the array that kernels read: zeros would cost less than real ones.
  Result<void> fill() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::array<float, 4093> numbers;
    for (float& number : numbers) number = normal(random);
    auto* const values = reinterpret_cast<float*>(staging_.view().data);
    for (std::size_t i = 0; i < bytes_ / sizeof(float); ++i)
      values[i] = std::ldexp(numbers[i % numbers.size()], -static_cast<int>(i >> 16 & 15));
    gpu::copy(staging_.view(), memory_[0].view(), stream_.get());
    return stream_->synchronize(kDeadline);
  }

  gpu::Elements elements(int buffer, DType dtype, std::size_t count) const {
    return {memory_[static_cast<std::size_t>(buffer)].view().subview(0, count * core::size_of(dtype)), dtype};
  }
  void add(std::string name, std::size_t bytes, std::function<void(gpu::StreamView)> call,
           std::string against = "copy") {
    candidates_.push_back({std::move(name), bytes, std::move(against), std::move(call)});
  }

  void collect() {
    const std::size_t n = bytes_ / sizeof(float);
    const auto f32 = [=, this](int buffer) { return elements(buffer, DType::f32, n); };
    const auto bf16 = [=, this](int buffer) { return elements(buffer, DType::bf16, n); };
    add("copy", 8 * n, [=](gpu::StreamView s) { gpu::copy(f32(0).view, f32(1).view, s); });
    add("zero", 4 * n, [=](gpu::StreamView s) { gpu::zero(f32(1).view, s); });
    add("cast f32 to bf16", 6 * n, [=](gpu::StreamView s) { gpu::cast(f32(0), bf16(1), s); });
    add("cast bf16 to f32", 6 * n, [=](gpu::StreamView s) { gpu::cast(bf16(0), f32(1), s); });
    add("scale f32", 8 * n, [=](gpu::StreamView s) { gpu::scale(f32(1), 1.0F, s); });
    add("accumulate f32", 12 * n, [=](gpu::StreamView s) { gpu::accumulate(f32(0), f32(1), s); });
    add("accumulate bf16", 6 * n, [=](gpu::StreamView s) { gpu::accumulate(bf16(0), bf16(1), s); });
    add("add_squares f32", 4 * n,
        [=, this](gpu::StreamView s) { gpu::add_squares(f32(0), squares_.view(), s); });
    add("tree_sum of 4 f32", 20 * n / kPartials, [=, this](gpu::StreamView s) {
      gpu::TreeSum sum;
      const auto part = f32(0).view.bytes / kPartials / 16 * 16;
      for (int i = 0; i < kPartials; ++i)
        sum.slots.push_back({f32(0).view.subview(static_cast<std::size_t>(i) * part, part), DType::f32});
      sum.steps = steps_;
      sum.output = {f32(1).view.subview(0, part), DType::f32};
      gpu::tree_sum(std::move(sum), s);
    });
    add("adam_step, f32 gradient, bf16 parameter", 30 * n, [=](gpu::StreamView s) {
      gpu::adam_step({}, 1, {f32(0), 1.0F, f32(1).view, bf16(4)}, {f32(2).view, f32(3).view}, s);
    });
    const auto chunks = [=, this](gpu::StreamView s) {
      for (std::size_t at = 0; at < bytes_; at += kChunkBytes) {
        const auto length = std::min(kChunkBytes, bytes_ - at);
        gpu::copy(f32(0).view.subview(at, length), staging_.view().subview(at, length), s);
      }
    };
    add(
        "copy to staging", 4 * n,
        [=, this](gpu::StreamView s) { gpu::copy(f32(0).view, staging_.view(), s); }, "copy to staging");
    add("copy to staging in chunks", 4 * n, chunks, "copy to staging");
  }

  std::size_t bytes_ = 0;
  std::unique_ptr<gpu::Device> device_;
  gpu::Buffer memory_[5];
  gpu::Buffer squares_;
  gpu::Buffer staging_;
  gpu::Stream stream_;
  std::vector<core::TreeStep> steps_;
  std::vector<Candidate> candidates_;
};

void print(const std::vector<KernelTime>& times, bool json) {
  if (json) {
    auto lines = nlohmann::json::array();
    for (const auto& time : times) {
      lines.push_back(
          {{"name", time.name}, {"bytes", time.bytes}, {"seconds", time.seconds}, {"ratio", time.ratio}});
    }
    fmt::print("{}\n", nlohmann::json{{"kernels", lines}}.dump());
    return;
  }
  fmt::print("{:<42} {:>10} {:>10} {:>8}\n", "", "us", "GB/s", "of copy");
  for (const auto& time : times) {
    fmt::print("{:<42} {:>10.1f} {:>10.1f} {:>7.0f}%\n", time.name, time.seconds * 1e6,
               static_cast<double>(time.bytes) / time.seconds / 1e9, time.ratio * 100);
  }
}

}  // namespace

Result<std::vector<KernelTime>> measure_kernels(const KernelBench& options) {
  auto bench = TRY(Bench::create(options));
  return bench->run(options.repeats);
}

void add_kernel_bench(CLI::App& bench, int& exit_code) {
  auto* command =
      bench.add_subcommand("kernels", "Compare the speed of a device's kernels with that of its memory copy");
  // Lives as long as the command's callbacks.
  const auto options = std::make_shared<KernelBench>();
  const auto json = std::make_shared<bool>(false);
  add_value(*command, "--device", core::text(options->device, gpu::check_device_name),
            "host, cuda or cuda:<index>")
      ->capture_default_str();
  add_number(*command, "--mib", options->mib, {1, 1 << 16}, "Size of the largest array of a call, in MiB")
      ->capture_default_str();
  add_number(*command, "--repeats", options->repeats, {1, 10'000}, "Batches; the median is printed")
      ->capture_default_str();
  command->add_flag("--json", *json, "Print JSON instead of a table");
  command->callback([options, json, &exit_code] {
    const auto times = measure_kernels(*options);
    if (times) return print(*times, *json);
    say_error("troupe", times.error().message);
    exit_code = times.error().code == core::Errc::invalid_argument ? kUsageError : 1;
  });
}

}  // namespace troupe::apps

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "gpu/kernels.hpp"
#include "gpu/order/task_order.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::Numerics;
using core::Strategy;

constexpr int kLayers = 4;

/// A job whose passes are kernels on the compute stream, or work of the host.
struct Shape {
  Strategy strategy = Strategy::ddp;
  Numerics numerics = Numerics::ordered;
  bool on_stream = true;
  int ranks = 4;
  int instances = 1;
  int context = 1;
  bool in_launch_order = false;
  core::DType wire = core::DType::f32;
  bool in_blocks = false;  ///< parameters are gathered so
  core::OptimizerKind optimizer = core::OptimizerKind::adamw;
  bool slow_network = false;
  int lanes = 8;
  int staging = 0;  ///< elements of an exchange; 0: as many as there are
  int tensor = 1;   ///< ranks that share the model; they also sum gradients of biases

  std::string name() const {
    return fmt::format("{}_{}_{}_{}x{}x{}x{}_{}{}{}{}{}{}", core::name_of(strategy), core::name_of(numerics),
                       on_stream ? "stream" : "host", ranks, instances, context, tensor, lanes,
                       in_launch_order ? "_full" : "", wire == core::DType::f32 ? "" : "_narrow",
                       in_blocks ? "_blocks" : "", optimizer == core::OptimizerKind::adamw ? "" : "_muon",
                       slow_network ? "_slow" : "") +
           (staging > 0 ? "_chunks" : "");
  }
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.name(); }
};

std::vector<core::ParameterSpec> parameters_of(const Shape& shape, core::Rank rank) {
  std::vector<core::ParameterSpec> specs;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    specs.push_back({fmt::format("w{}", layer), {8, 16}});
    specs.back().unit = core::UnitIndex{layer};
    if (shape.in_blocks) {
      specs.back().dtype = core::DType::bf16;
      specs.back().gather_dtype = core::DType::f8_e4m3;
    }
    if (shape.tensor > 1) {
      specs.back().global_shape = {8 * shape.tensor, 16};
      specs.back().offset = {8 * (rank.value % shape.tensor), 0};
    }
    specs.push_back({fmt::format("b{}", layer), {11, 1}});
    specs.back().unit = core::UnitIndex{layer};
    if (shape.tensor > 1) specs.back().also_sum = "tp";
  }
  return specs;
}

/// All ranks in one group.
std::vector<TrainerGroupSpec> everybody(const Shape& shape) {
  std::vector<core::Rank> members;
  for (int rank = 0; rank < shape.ranks; ++rank) members.push_back({rank});
  return {{"everybody", {members}}};
}

SessionOptions options_of(const Shape& shape, core::Rank rank, gpu::BufferView average) {
  SessionOptions options;
  options.groups = everybody(shape);
  TrainerTensor own;
  own.tensor = core::ShardedTensor::from_rank_offsets(
                   "average", core::DType::f32, {static_cast<std::int64_t>(average.bytes / sizeof(float))},
                   {}, {0, {rank.value}})
                   .value();
  own.memory = average;
  options.tensors.push_back(std::move(own));
  auto& training = options.training;
  training.strategy = shape.strategy;
  training.numerics = shape.numerics;
  training.optimizer_instances = shape.instances;
  training.context_parallel = shape.context;
  training.lanes = shape.lanes;
  training.tensor_parallel = shape.tensor;
  training.staging_elements = shape.staging;
  training.bucket_elements = 64;
  training.clip_norm = 1;
  training.wire_dtype = shape.wire;
  training.optimizer.kind = shape.optimizer;
  // So short that buffers serve again and again.
  options.checkpoint.staging_bytes = 1024;
  options.checkpoint.chunk_bytes = 256;
  options.local.staging_bytes = 128;
  options.local.chunk_bytes = 64;
  options.local.sync = true;
  return options;
}

class Passes {
 public:
  Passes(Session& session, SimulatedRank& rank, gpu::StreamView compute, gpu::BufferView average)
      : session_(session), rank_(rank), compute_(compute), average_(average) {}

  core::Result<void> step() {
    TRY(session_.begin_step(0.01));
    for (const core::Lane lane : session_.lanes()) {
      TRY(session_.begin_lane(lane));
      for (std::uint32_t layer = 0; layer < kLayers; ++layer) TRY(forward(layer));
      TRY(session_.begin_backward());
      for (std::uint32_t layer = kLayers; layer-- > 0;) TRY(backward(layer));
      TRY(session_.end_lane(lane.value));
    }
    if (!TRY(session_.finish_step()).committed)
      return core::fail(core::Errc::internal, "a step was refused: what it read was not there any more");
    return sum_average();
  }

  core::Result<void> evaluate() {
    TRY(session_.begin_evaluation());
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) TRY(forward(layer));
    return session_.end_evaluation();
  }

 private:
  /// Takes the host or the stream as long as it says.
  void work(std::uint64_t bytes) {
    if (compute_ != nullptr) return compute_->enqueue("layer", {bytes}, [] {});
    rank_.compute(std::chrono::nanoseconds(bytes / 1000));
  }

  /// What a kernel writes goes through a collective and to another kernel.
  core::Result<void> sum_average() {
    if (compute_ == nullptr) return {};
    const gpu::Elements average{average_, core::DType::f32};
    gpu::fill(average, 1, compute_);
    auto& group = *TRY(session_.group("everybody"));
    TRY(group.wait(TRY(group.all_reduce(average_, core::DType::f32))));
    gpu::scale(average, 0.5F, compute_);
    return {};
  }

  core::Result<void> forward(std::uint32_t layer) {
    for (const core::ParameterIndex p : {core::ParameterIndex{2 * layer}, {2 * layer + 1}}) {
      TRY(session_.before_use(p));
      const auto values = TRY(session_.parameter_memory(p));
      if (compute_ != nullptr) gpu::declare(*compute_, "forward of the test", {values}, {});
      work(50'000'000);
    }
    return {};
  }

  core::Result<void> backward(std::uint32_t layer) {
    for (const core::ParameterIndex p : {core::ParameterIndex{2 * layer + 1}, {2 * layer}}) {
      TRY(session_.before_use(p));
      const gpu::Elements values{TRY(session_.parameter_memory(p)), session_.parameters()[p.value].dtype};
      const auto gradient = TRY(session_.gradient_memory(p));
      work(80'000'000);
      const gpu::Elements sum{gradient, core::DType::f32};
      if (compute_ != nullptr) {
        gpu::accumulate(values, sum, compute_);
      } else {
        gpu::accumulate(values, sum);
      }
      TRY(session_.gradient_ready(p));
    }
    return {};
  }

  Session& session_;
  SimulatedRank& rank_;
  gpu::StreamView compute_;
  gpu::BufferView average_;
};

/// First values, from the host, and then doubled by the stream.
core::Result<void> initialise(Session& session, gpu::StreamView compute) {
  for (const auto p : core::indices<core::ParameterIndex>(session.parameters().size())) {
    TRY(session.write_parameter(p, [&](std::int64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((first + static_cast<std::int64_t>(i) + p.value) % 7) / 8.0F;
    }));
    if (compute == nullptr) continue;
    // Only a part of a sharded parameter is here.
    if (const auto memory = session.parameter_memory(p))
      gpu::scale({*memory, session.parameters()[p.value].dtype}, 2, compute);
  }
  return {};
}

core::Result<std::uint64_t> train(SimulatedRank& rank, const Shape& shape) {
  const auto average = TRY(rank.device().allocate(64));
  auto session = TRY(
      Session::join(rank, options_of(shape, rank.rank(), average.view()), parameters_of(shape, rank.rank())));
  const gpu::StreamView compute = shape.on_stream ? TRY(session->compute_stream()) : nullptr;
  TRY(initialise(*session, compute));
  Passes passes(*session, rank, compute, average.view());
  const auto save = [&]() -> core::Result<void> {
    TRY(session->save());
    TRY(session->save_local());
    return {};
  };
  TRY(save());
  for (int step = 0; step < 4; ++step) {
    TRY(passes.step());
    TRY(save());
    if (step == 1) TRY(passes.evaluate());
  }
  TRY(session->wait_saves());
  TRY(session->wait_local_saves());
  TRY(session->leave());
  return 0;
}

class Order : public testing::TestWithParam<Shape> {};

TEST_P(Order, OfAllThatTouchesTheSameMemoryIsKnown) {
  const Shape& shape = GetParam();
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    SimulatedStorage disk({});
    std::vector<std::unique_ptr<SimulatedStorage>> nodes;
    SimulationOptions simulation;
    simulation.ranks = {shape.ranks};
    simulation.seed = seed;
    simulation.fabric.in_launch_order = shape.in_launch_order;
    if (shape.slow_network) simulation.fabric.bytes_per_second = 1e6;
    simulation.storage = &disk;
    for (int node = 0; node < shape.ranks; ++node) {
      nodes.push_back(std::make_unique<SimulatedStorage>(SimulatedStorageOptions{}));
      simulation.local_storages.push_back(nodes.back().get());
    }
    const auto outcome =
        simulate_job<std::uint64_t>(simulation, [&](SimulatedRank& rank) { return train(rank, shape); });

    ASSERT_EQ(problems_of(outcome.report), "") << "seed " << seed;
  }
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const auto strategy :
       {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    const int instances = strategy == Strategy::hsdp || strategy == Strategy::hfsdp ? 2 : 1;
    for (const auto numerics : {Numerics::ordered, Numerics::fast}) {
      for (const bool on_stream : {true, false}) {
        for (const bool is_slow : {false, true}) {
          Shape shape{.strategy = strategy, .numerics = numerics, .on_stream = on_stream};
          shape.instances = instances;
          shape.slow_network = is_slow;
          all.push_back(shape);
        }
      }
      Shape narrow{.strategy = strategy, .numerics = numerics, .instances = instances};
      narrow.wire = core::DType::bf16;
      all.push_back(narrow);
      if (strategy == Strategy::ddp) continue;
      Shape blocks{.strategy = strategy, .numerics = numerics, .instances = instances};
      blocks.in_blocks = true;
      all.push_back(blocks);
    }
    Shape full{.strategy = strategy, .instances = instances, .in_launch_order = true};
    all.push_back(full);
    Shape one{.strategy = strategy, .ranks = instances, .instances = instances};
    all.push_back(one);
    Shape pieces{.strategy = strategy, .ranks = 4 * instances, .instances = instances, .context = 2};
    all.push_back(pieces);
  }
  for (const auto strategy :
       {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    for (const auto numerics : {Numerics::ordered, Numerics::fast}) {
      // Some ranks have a lane more than others, and sums of several roots.
      Shape uneven{.strategy = strategy, .numerics = numerics, .lanes = 6};
      uneven.instances = strategy == Strategy::hsdp || strategy == Strategy::hfsdp ? 2 : 1;
      all.push_back(uneven);
      uneven.lanes = 7;
      uneven.slow_network = true;
      all.push_back(uneven);
      uneven.ranks = 8;
      uneven.tensor = 2;
      all.push_back(uneven);
    }
  }
  for (const auto numerics : {Numerics::ordered, Numerics::fast}) {
    Shape chunks{.strategy = Strategy::ddp, .numerics = numerics, .ranks = 8, .staging = 16, .tensor = 2};
    all.push_back(chunks);
    chunks.wire = core::DType::bf16;
    all.push_back(chunks);
    chunks.staging = 0;
    all.push_back(chunks);
    chunks.staging = 16;
    chunks.context = 2;
    all.push_back(chunks);
    chunks.strategy = Strategy::zero1;
    all.push_back(chunks);
  }
  for (const auto strategy : {Strategy::zero1, Strategy::zero2}) {
    Shape copies{.strategy = strategy, .instances = 2};
    all.push_back(copies);
  }
  Shape muon{.strategy = Strategy::ddp, .optimizer = core::OptimizerKind::muon};
  all.push_back(muon);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, Order, testing::ValuesIn(shapes()), testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::actors

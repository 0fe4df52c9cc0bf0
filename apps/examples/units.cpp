// A trainer with its own loop and units under ZeRO-3: no rank ever holds more than two layers. One rank or
// many, the numbers are the same:
//
//   build/release/bin/units
//   build/release/bin/troupe launch --standalone --nproc-per-node 4 -- build/release/bin/units
#include <cmath>
#include <cstdio>
#include <troupe/core/random.hpp>
#include <troupe/process_world.hpp>
#include <troupe/session.hpp>

using namespace troupe;
constexpr std::uint32_t kLayers = 8, kWidth = 1000;

core::Result<void> train() {
  auto world = TROUPE_TRY(actors::ProcessWorld::create());
  actors::SessionOptions options;
  options.training.strategy = core::Strategy::zero3;
  options.training.lanes = 4;
  std::vector<core::ParameterSpec> parameters(kLayers);  // y = x + w tanh(x), layer by layer
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    parameters[i].name = "layer" + std::to_string(i), parameters[i].shape = {kWidth};
    parameters[i].unit = core::UnitIndex{i};
  }
  auto session = TROUPE_TRY(actors::Session::join(*world, options, parameters));
  const auto first_values = [](std::int64_t first, std::span<float> values) {
    for (float& value : values) value = 0.01F * static_cast<float>(first++ % 7);
  };
  for (std::uint32_t i = 0; i < kLayers; ++i) TROUPE_TRY(session->write_parameter({i}, first_values));
  std::vector<std::vector<float>> x(kLayers + 1, std::vector<float>(kWidth));
  for (int step = 0; step < 100; ++step) {
    TROUPE_TRY(session->begin_step(0.01));
    for (const core::Lane lane : session->lanes()) {
      TROUPE_TRY(session->begin_lane(lane));
      const core::CounterRandom random(1, "data", core::Step{step}, lane);
      for (std::uint32_t j = 0; j < kWidth; ++j) x[0][j] = random.uniform(j);
      for (std::uint32_t i = 0; i < kLayers; ++i) {
        TROUPE_TRY(session->acquire({i}));  // the next layer is being gathered while this one computes
        const auto w = TROUPE_TRY(session->parameter({i}));
        for (std::uint32_t j = 0; j < kWidth; ++j) x[i + 1][j] = x[i][j] + w[j] * std::tanh(x[i][j]);
      }
      TROUPE_TRY(session->begin_backward());
      float loss = 0;
      std::vector<float> d(kWidth);  // of the loss, the mean of (y - 2 x)^2
      for (std::uint32_t j = 0; j < kWidth; ++j) {
        d[j] = 2 * (x[kLayers][j] - 2 * x[0][j]) / kWidth;
        loss += d[j] * d[j] * kWidth / 4;
      }
      for (std::uint32_t i = kLayers; i-- > 0;) {
        TROUPE_TRY(session->acquire({i}));
        const auto w = TROUPE_TRY(session->parameter({i})), g = TROUPE_TRY(session->gradient({i}));
        for (std::uint32_t j = 0; j < kWidth; ++j) {
          const float h = std::tanh(x[i][j]);
          g[j] += d[j] * h, d[j] *= 1 + w[j] * (1 - h * h);
        }
        TROUPE_TRY(session->gradient_ready({i}));
      }
      TROUPE_TRY(session->end_lane(loss));
    }
    const auto outcome = TROUPE_TRY(session->finish_step());
    if (!outcome.committed)
      std::fprintf(stderr, "step %d was not committed: %s\n", step + 1, outcome.reason.c_str());
    if (session->rank().value == 0 && step % 20 == 19)
      std::printf("step %d loss %.6f\n", step + 1, outcome.loss);
  }
  return session->leave();
}

int main() {
  const auto result = train();
  if (!result) std::fprintf(stderr, "units: %s\n", result.error().message.c_str());
  return result ? 0 : 1;
}

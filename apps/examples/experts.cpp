// Experts that ranks share: each token goes to 2 of 8, wherever they are. One rank or many, the same numbers:
//
//   build/release/bin/experts
//   build/release/bin/troupe launch --standalone --nproc-per-node 4 -- build/release/bin/experts
#include <cstdio>
#include <troupe/core/random.hpp>
#include <troupe/process_world.hpp>
#include <troupe/session.hpp>
#include <troupe/trainer_group.hpp>

using namespace troupe;
constexpr std::uint32_t kTokens = 64, kExperts = 8, kWidth = 8, kRowBytes = kWidth * sizeof(float);

// An expert multiplies a token's elements by its weights; the sum is to become 2x. Returns the loss.
core::Result<double> pass(actors::Session& session, actors::ExpertLayer& layer, const std::vector<float>& x) {
  const auto router = TROUPE_TRY(session.parameter({0})), d_router = TROUPE_TRY(session.gradient({0}));
  std::vector<float> logits(kTokens * kExperts), d_logits(logits.size());
  const auto token = [](std::size_t i) { return i / kExperts / kWidth * kWidth + i % kWidth; };
  for (std::size_t i = 0; i < logits.size() * kWidth; ++i)
    logits[i / kWidth] += router[i % router.size()] * x[token(i)];
  const auto routes = TROUPE_TRY(layer.route(logits));
  auto slots = routes.gather(kWidth, x);
  std::vector<float> rows(routes.received * kWidth), results(rows.size());
  TROUPE_TRY(layer.dispatch(routes, gpu::view_of(slots), gpu::view_of(rows), kRowBytes));
  for (const auto& [expert, source, first, end] : routes.products) {
    const auto w = TROUPE_TRY(session.parameter({1 + expert}));
    for (std::size_t i = first * kWidth; i < end * kWidth; ++i) results[i] = w[i % kWidth] * rows[i];
  }
  TROUPE_TRY(layer.combine(routes, gpu::view_of(results), gpu::view_of(slots), kRowBytes));
  auto d = routes.weigh(kWidth, slots);
  double loss = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    d[i] = (d[i] - 2 * x[i]) * 2 / kTokens;  // of the loss, the tokens' mean of (y - 2x)^2
    loss += static_cast<double>(d[i]) * static_cast<double>(d[i]) * kTokens / 4;
  }
  const auto d_weighed = routes.weigh_backward(kWidth, slots, d);
  TROUPE_TRY(layer.dispatch(routes, gpu::view_of(d_weighed.slots), gpu::view_of(results), kRowBytes));
  for (const auto& [expert, source, first, end] : routes.products) {
    const auto g = TROUPE_TRY(session.gradient({1 + expert}, source));
    for (std::size_t i = first * kWidth; i < end * kWidth; ++i) g[i % kWidth] += results[i] * rows[i];
  }
  TROUPE_TRY(layer.route_backward(routes, logits, d_weighed.weights, d_logits));
  for (std::size_t i = 0; i < logits.size() * kWidth; ++i)
    d_router[i % router.size()] += d_logits[i / kWidth] * x[token(i)];
  return loss;
}

core::Result<void> train() {
  auto world = TROUPE_TRY(actors::ProcessWorld::create());
  const int ranks = world->world_size().value, own = static_cast<int>(kExperts) / ranks;
  actors::SessionOptions options;
  options.training.lanes = 4, options.training.expert_parallel = ranks;
  options.training.experts = {{.experts = kExperts, .tokens = kTokens, .bias_rate = 0.001}};
  std::vector<core::ParameterSpec> parameters{{"router", {kExperts, kWidth}}};
  for (int e = world->rank().value * own; e < (world->rank().value + 1) * own; ++e)
    parameters.push_back({.name = "expert" + std::to_string(e), .shape = {kWidth}, .is_expert = true});
  auto session = TROUPE_TRY(actors::Session::join(*world, options, parameters));
  std::vector<float> x(kTokens * kWidth);
  for (int step = 0; step < 100; ++step) {
    TROUPE_TRY(session->begin_step(0.05));
    for (const core::Lane lane : session->lanes()) {
      TROUPE_TRY(session->begin_lane(lane));
      for (std::uint32_t p = 0; p < parameters.size(); ++p) TROUPE_TRY(session->before_use({p}));
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = core::CounterRandom(1, "data", core::Step{step}, lane).uniform(i) - 0.5F;
      const double loss = TROUPE_TRY(pass(*session, *TROUPE_TRY(session->experts(0)), x));
      for (std::uint32_t p = 0; p < parameters.size(); ++p) TROUPE_TRY(session->gradient_ready({p}));
      TROUPE_TRY(session->end_lane(loss));
    }
    const auto outcome = TROUPE_TRY(session->finish_step());
    if (session->rank().value == 0 && step % 20 == 19)
      std::printf("step %d loss %.6f\n", step + 1, outcome.loss);
  }
  return session->leave();
}

int main() {
  const auto result = train();
  return result ? 0 : (std::fprintf(stderr, "experts: %s\n", result.error().message.c_str()), 1);
}

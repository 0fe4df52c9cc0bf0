// A two-layer perceptron on raw pointers that learns y = sin(3 x). One rank or many, the numbers are the
// same:
//
//   build/release/bin/mlp
//   build/release/bin/troupe launch --standalone --nproc-per-node 2 -- build/release/bin/mlp
#include <caf/event_based_actor.hpp>
#include <cmath>
#include <cstdio>
#include <troupe/core/random.hpp>
#include <troupe/process_world.hpp>
#include <troupe/session.hpp>
#include <troupe/subscribers.hpp>

using namespace troupe;

namespace {

constexpr int kHidden = 32;
constexpr int kBatch = 64;

/// The loss of one batch; adds its gradients. w1, b1, w2: (kHidden), b2: (1).
float forward_backward(core::Step step, core::Lane lane, const float* w1, const float* b1, const float* w2,
                       const float* b2, float* g1, float* gb1, float* g2, float* gb2) {
  core::CounterRandom random(1, "batch", step, lane);
  float loss = 0;
  for (int i = 0; i < kBatch; ++i) {
    float x = 2 * random.uniform(static_cast<std::uint64_t>(i)) - 1;
    float h[kHidden];
    float y = b2[0];
    for (int j = 0; j < kHidden; ++j) y += w2[j] * (h[j] = std::tanh(w1[j] * x + b1[j]));
    float error = y - std::sin(3 * x);
    loss += error * error / kBatch;
    float dy = 2 * error / kBatch;
    gb2[0] += dy;
    for (int j = 0; j < kHidden; ++j) {
      float dh = dy * w2[j] * (1 - h[j] * h[j]);
      g2[j] += dy * h[j];
      g1[j] += dh * x;
      gb1[j] += dh;
    }
  }
  return loss;
}

/// A trainer's own actor among those of the runtime: it is told of every committed step.
class CommitCounter final : public caf::event_based_actor {
 public:
  using caf::event_based_actor::event_based_actor;
  caf::behavior make_behavior() override {
    return {[this](const actors::RankEvent& event) {
      if (event.kind == actors::RankEvent::Kind::step_committed && ++commits_ % 100 == 0)
        std::printf("an actor counted %d committed steps\n", commits_);
    }};
  }

 private:
  int commits_ = 0;
};

core::Result<void> train(actors::ProcessWorld& world) {
  actors::SessionOptions options;
  options.training.lanes = 4;
  options.training.optimizer.weight_decay = 0;
  auto session = TROUPE_TRY(actors::Session::join(
      world, options, {{"w1", {kHidden}}, {"b1", {kHidden}}, {"w2", {kHidden}}, {"b2", {1}}}));
  caf::actor_system* const system = TROUPE_TRY(actors::actor_system(world));
  TROUPE_TRY(actors::subscribe(world, system->spawn<CommitCounter>()));
  const auto recovered = TROUPE_TRY(session->recover());
  for (std::uint32_t p = 0; p < 3 && !recovered; ++p) {
    core::CounterRandom random(p, "initial values");
    const auto values = TROUPE_TRY(session->parameter({p}));
    for (std::size_t j = 0; j < values.size(); ++j) values[j] = random.normal(j);
  }
  for (int step = static_cast<int>(session->next_step().value); step < 300; ++step) {
    TROUPE_TRY(session->begin_step(0.01));
    for (core::Lane lane : session->lanes()) {
      TROUPE_TRY(session->begin_lane(lane));
      float* w[4];
      float* g[4];
      for (std::uint32_t p = 0; p < 4; ++p) {
        TROUPE_TRY(session->before_use({p}));
        w[p] = TROUPE_TRY(session->parameter({p})).data();
        g[p] = TROUPE_TRY(session->gradient({p})).data();
      }
      float loss = forward_backward({step}, lane, w[0], w[1], w[2], w[3], g[0], g[1], g[2], g[3]);
      for (std::uint32_t p = 4; p-- > 0;) TROUPE_TRY(session->gradient_ready({p}));
      TROUPE_TRY(session->end_lane(loss));
    }
    const auto outcome = TROUPE_TRY(session->finish_step());
    if (!outcome.committed)
      std::fprintf(stderr, "step %d was not committed: %s\n", step + 1, outcome.reason.c_str());
    if (session->rank().value == 0 && step % 50 == 49)
      std::printf("step %d loss %.6f\n", step + 1, outcome.loss);
  }
  return session->leave();
}

/// Begins again when another rank was lost and `troupe launch --max-restarts` has put a process in its place.
core::Result<void> run() {
  actors::ProcessWorldOptions options;
  options.stays = true;
  auto world = TROUPE_TRY(actors::ProcessWorld::create(options));
  while (true) {
    auto end = train(*world);
    if (end || !world->form_anew(end.error())) return end;
  }
}

}  // namespace

int main() {
  auto result = run();
  if (!result) std::fprintf(stderr, "mlp: %s\n", result.error().message.c_str());
  return result ? 0 : 1;
}

// A trainer of which one rank misbehaves: wayward SEED [STEPS], where the seed is that of a scene. With a
// number of steps no rank does.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/shell/process_world.hpp"
#include "core/errors.hpp"
#include "tests/verdicts/scene.hpp"

namespace troupe::tests {
namespace {

using actors::Session;
using actors::TrainerGroup;
using core::Result;

class Wayward {
 public:
  Wayward(Scene scene, Session& session) : scene_(std::move(scene)), session_(session) {}

  Result<void> take_step(int step) {
    const bool is_here = step == scene_.step && session_.rank().value == scene_.rank;
    TRY(session_.begin_step(0.01));
    std::vector<std::size_t> order(scene_.operations.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (is_here && scene_.way == Way::other_order) std::swap(order[scene_.place], order[scene_.place + 1]);
    for (const std::size_t place : order) {
      const bool is_now = is_here && place == scene_.place;
      if (is_now) misbehave();
      TRY(post(scene_.operations[place], is_now));
    }
    TRY(end_posted());
    for (const core::Lane lane : session_.lanes()) {
      TRY(session_.begin_lane(lane));
      TRY(session_.before_use({0}));
      const auto gradient = TRY(session_.gradient({0}));
      std::ranges::fill(gradient, 1.0F);
      TRY(session_.gradient_ready({0}));
      TRY(session_.end_lane(1.0));
    }
    TRY(session_.finish_step());
    return {};
  }

 private:
  void misbehave() const {
    switch (scene_.way) {
      case Way::stops:
        ::raise(SIGSTOP);
        return;
      case Way::loops: {
        volatile unsigned number = 0;
        for (;;) number = number + 1;
      }
      case Way::exits:
        ::_exit(scene_.step % 2 == 0 ? 0 : 7);
      default:
        return;
    }
  }

  Result<void> post(SceneOperation operation, bool is_wayward) {
    using gpu::OperationKind;
    auto dtype = core::DType::f32;
    if (is_wayward && scene_.way == Way::counts_wrong) operation.elements += 1;
    if (is_wayward && scene_.way == Way::other_dtype) dtype = core::DType::i32;
    if (is_wayward && scene_.way == Way::other_kind) {
      operation.kind =
          operation.kind == OperationKind::all_reduce ? OperationKind::all_gather : OperationKind::all_reduce;
    }
    TrainerGroup& group = *TRY(session_.group(scene_.groups[operation.group].first));
    const auto members = static_cast<std::size_t>(group.size());
    const std::size_t part = operation.elements * 4;
    memory_.emplace_back(2 * members * part);
    auto* const bytes = memory_.back().data();
    const gpu::BufferView one{bytes, part};
    const gpu::BufferView all{bytes + members * part, members * part};
    const gpu::BufferView other{bytes, members * part};
    const TrainerGroup::Counts counts(members, operation.elements);
    TrainerGroup::Posted posted{};
    switch (operation.kind) {
      case OperationKind::all_reduce:
        posted = TRY(group.all_reduce(one, dtype));
        break;
      case OperationKind::all_gather:
        posted = TRY(group.all_gather(one, all, dtype, counts));
        break;
      case OperationKind::reduce_scatter:
        posted = TRY(group.reduce_scatter(all, one, dtype, counts));
        break;
      case OperationKind::all_to_all:
        posted = TRY(group.all_to_all(all, counts, other, counts, dtype));
        break;
      default:
        posted = TRY(group.broadcast(one, dtype, 0));
    }
    posted_.emplace_back(&group, posted);
    return scene_.waits_at_once ? end_posted() : Result<void>{};
  }

  Result<void> end_posted() {
    for (const auto& [group, posted] : posted_) TRY(group->wait(posted));
    posted_.clear();
    memory_.clear();
    return {};
  }

  const Scene scene_;
  Session& session_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::pair<TrainerGroup*, TrainerGroup::Posted>> posted_;
};

Result<void> train(std::uint64_t seed, int steps) {
  Scene scene = draw_scene(seed);
  if (steps > 0) scene.way = Way::none;
  actors::ProcessWorldOptions options;
  options.collectives = scene.over_tcp ? "tcp" : "shared_memory";
  auto world = TRY(actors::ProcessWorld::create(std::move(options)));
  actors::SessionOptions session_options;
  session_options.training.lanes = 4 * scene.ranks;
  session_options.step_deadline = std::chrono::milliseconds(1200);
  for (const auto& [name, members] : scene.groups) session_options.groups.push_back({name, members});
  auto session = TRY(Session::join(*world, std::move(session_options), {{"weights", {100}}}));
  Wayward wayward(scene, *session);
  for (int step = 0; step < (steps > 0 ? steps : scene.steps); ++step) TRY(wayward.take_step(step));
  return session->leave();
}

}  // namespace
}  // namespace troupe::tests

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const auto seed = std::strtoull(argv[1], nullptr, 10);
  const int steps = argc > 2 ? std::atoi(argv[2]) : 0;
  const auto result = troupe::tests::train(seed, steps);
  if (!result) std::fprintf(stderr, "wayward: %s\n", result.error().message.c_str());
  return result ? 0 : 1;
}

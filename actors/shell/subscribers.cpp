#include "actors/shell/subscribers.hpp"

#include "actors/shell/caf_stage.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

namespace {

core::Result<CafStage*> stage_of(ProcessWorld& world) {
  if (CafStage* stage = world.stage()) return stage;
  return core::fail(core::Errc::invalid_argument,
                    "there are no actors to listen to: subscribe after Session::join() and before leave()");
}

}  // namespace

core::Result<void> subscribe(ProcessWorld& world, caf::actor subscriber) {
  TRY(stage_of(world))->subscribe(std::move(subscriber));
  return {};
}

core::Result<caf::actor_system*> actor_system(ProcessWorld& world) {
  return &TRY(stage_of(world))->system();
}

}  // namespace troupe::actors

# What others may include, 25 headers at most: a file of the tree, and its name below include/troupe/.
set(TROUPE_PUBLIC_HEADERS
  actors/session/session.hpp             session.hpp
  actors/session/options.hpp             options.hpp
  actors/session/outcomes.hpp            outcomes.hpp
  actors/session/trainer_group.hpp       trainer_group.hpp
  actors/session/c/troupe.h              troupe.h
  actors/planes/step/trainer_tensor.hpp  trainer_tensor.hpp
  actors/shell/process_world.hpp         process_world.hpp
  actors/shell/subscribers.hpp           subscribers.hpp
  actors/simulation/faults.hpp           faults.hpp
  actors/world/environment.hpp           environment.hpp
  core/options/options.hpp               core/options.hpp
  core/boxes/box.hpp                     core/box.hpp
  core/boxes/sharded_tensor.hpp          core/sharded_tensor.hpp
  core/check.hpp                         core/check.hpp
  core/checkpoint/manifest_object.hpp    core/manifest_object.hpp
  core/dtype.hpp                         core/dtype.hpp
  core/ids.hpp                           core/ids.hpp
  core/plan/terms.hpp                    core/terms.hpp
  core/random.hpp                        core/random.hpp
  core/result.hpp                        core/result.hpp
  core/state/strictness.hpp              core/strictness.hpp
  core/trace.hpp                         core/trace.hpp
  core/values/value.hpp                  core/value.hpp
  gpu/buffer.hpp                         gpu/buffer.hpp
  gpu/stream.hpp                         gpu/stream.hpp
)

#pragma once

#include <string>

#include "actors/world/environment.hpp"

namespace troupe::actors {

/// What the engine that started this process says besides JobEnvironment.
struct EngineFacts {
  std::string local_source;  ///< the variables that say which ranks share a host; empty: none does
  /// Not empty: torchrun's agent listens at the control port, so that rank 0 cannot. It listens elsewhere,
  /// and tells the others where under this key of the agent's store.
  std::string agent_key;
};

EngineFacts engine_facts(const Variables& variables);

}  // namespace troupe::actors

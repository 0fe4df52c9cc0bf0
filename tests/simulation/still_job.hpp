#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/errors.hpp"
#include "core/indices.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {

/// A rank of a job whose values nothing changes: of interest is what is saved and restored.
struct StillRank {
  SessionOptions session;
  std::vector<core::ParameterSpec> parameters;
  float first_value = 0;  ///< of the first element of the first parameter; each next one has one more
};

/// The values of all parameters, end to end.
using StillValues = std::vector<float>;

inline core::Result<std::unique_ptr<Session>> join_still(RankWorld& world, const StillRank& rank) {
  auto session = TRY(Session::join(world, rank.session, rank.parameters));
  float value = rank.first_value;
  for (const auto index : core::indices<core::ParameterIndex>(rank.parameters.size())) {
    TRY(session->write_parameter(index, [&](std::int64_t, std::span<float> values) {
      for (auto& element : values) element = value++;
    }));
  }
  return session;
}

inline core::Result<StillValues> leave_still(Session& session) {
  StillValues all;
  TRY(session.begin_evaluation());
  for (const auto index : core::indices<core::ParameterIndex>(session.parameters().size())) {
    TRY(session.before_use(index));
    const auto values = TRY(session.parameter(index));
    all.insert(all.end(), values.begin(), values.end());
  }
  TRY(session.end_evaluation());
  TRY(session.leave());
  return all;
}

/// Takes one step, which changes nothing, and saves.
inline core::Result<StillValues> save_still(RankWorld& world, const StillRank& rank) {
  auto session = TRY(join_still(world, rank));
  TRY(session->begin_step(0));
  for (const core::Lane lane : session->lanes()) {
    TRY(session->begin_lane(lane));
    TRY(session->begin_backward());
    for (const auto index : core::indices<core::ParameterIndex>(rank.parameters.size()))
      TRY(session->gradient_ready(index));
    TRY(session->end_lane(0));
  }
  TRY(session->finish_step());
  TRY(session->save());
  TRY(session->wait_saves());
  for (const auto& save : session->take_saves()) TRY(save.committed);
  return leave_still(*session);
}

inline core::Result<StillValues> restore_still(RankWorld& world, const StillRank& rank) {
  auto session = TRY(join_still(world, rank));
  if (!TRY(session->restore())) return core::fail(core::Errc::not_found, "there is no checkpoint");
  return leave_still(*session);
}

}  // namespace troupe::actors

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "actors/session/c/options.hpp"
#include "actors/session/c/troupe.h"
#include "tests/support/unused_port.hpp"

namespace troupe::actors {

/// One rank of a job, on a thread of this process.
class CRank {
 public:
  CRank(int number, int ranks, std::uint16_t port) : rank(number), options(troupe_options_new()) {
    options->world.environment = [=] {
      JobEnvironment environment;
      environment.rank = {number};
      environment.world = {ranks};
      environment.local_rank = number;
      environment.local_world = ranks;
      environment.job = "c-groups-" + std::to_string(::getpid());
      environment.control_port = port;
      return core::Result<JobEnvironment>(environment);
    };
    set("step-seconds", "30");
    set("optimizer", "sgd");
    set("weight-decay", "0");
  }
  ~CRank() {
    troupe_session_free(session);
    troupe_options_free(options);
  }
  CRank(const CRank&) = delete;
  CRank& operator=(const CRank&) = delete;

  void ok(troupe_status status) {
    EXPECT_EQ(status, TROUPE_OK) << "rank " << rank << ": " << error.message;
    // Otherwise the others would wait.
    if (status != TROUPE_OK && session != nullptr) troupe_abandon(session, "the test failed", nullptr);
  }
  void refuses(troupe_status status, const std::string& says) {
    EXPECT_EQ(status, TROUPE_INVALID_ARGUMENT) << says;
    EXPECT_THAT(std::string(error.message), ::testing::HasSubstr(says));
  }
  void set(const char* name, const char* value) { ok(troupe_options_set(options, name, value, &error)); }
  void add(const char* name, std::int64_t elements, std::uint32_t flags = 0) {
    ok(troupe_options_add_parameter(options, name, &elements, 1, TROUPE_F32, flags, &error));
  }
  void cut(const char* name, std::vector<std::int32_t> part_of) {
    ok(troupe_options_add_group(options, name, part_of.data(), part_of.size(), &error));
  }
  troupe_group* group(const char* name) {
    troupe_group* found = nullptr;
    ok(troupe_group_of(session, name, &found, &error));
    return found;
  }
  void wait(troupe_group* group) { ok(troupe_group_wait(group, posted, &error)); }
  void begin_lane() {
    ok(troupe_begin_step(session, 1, &error));
    ok(troupe_begin_lane(session, troupe_lane(session, 0), &error));
  }
  float* gradient(std::uint32_t parameter) {
    void* data = nullptr;
    ok(troupe_before_use(session, parameter, &error));
    ok(troupe_gradient(session, parameter, &data, nullptr, &error));
    return static_cast<float*>(data);
  }
  troupe_step_outcome end_step() {
    troupe_step_outcome outcome{};
    for (std::uint32_t p = troupe_parameter_count(session); p-- > 0;)
      ok(troupe_gradient_ready(session, p, &error));
    ok(troupe_end_lane(session, 1, &error));
    ok(troupe_finish_step(session, nullptr, 0, &outcome, &error));
    EXPECT_EQ(outcome.committed, 1) << outcome.reason;
    return outcome;
  }

  int rank;
  troupe_options* options;
  troupe_session* session = nullptr;
  troupe_error error{};
  std::uint64_t posted = 0;
  troupe_group* group_out = nullptr;
};

/// What one rank does.
using Part = std::function<void(CRank&)>;

/// Each rank joins with what `configure` says, plays, and leaves.
inline void run(int ranks, const Part& configure, const Part& play) {
  const auto port = tests::unused_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      CRank self(rank, ranks, port);
      configure(self);
      self.ok(troupe_session_join(self.options, &self.session, &self.error));
      if (self.session == nullptr) return;
      play(self);
      self.ok(troupe_leave(self.session, &self.error));
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace troupe::actors

// What trainers have besides lanes, units and collectives: frozen parameters and groups of them, a loss
// scale, passes, tensors of their own, local saves, and the choices of a restore.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

#include "tests/actors/session/c/one_rank.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

class CTrainer : public CInterface {
 protected:
  void SetUp() override {
    options_ = troupe_options_new();
    set("optimizer", "sgd");
    set("weight-decay", "0");
  }
  void add_vector(const char* name, std::uint32_t flags = 0) {
    const std::int64_t elements = 4;
    ASSERT_EQ(troupe_options_add_parameter(options_, name, &elements, 1, TROUPE_F32, flags, &error_),
              TROUPE_OK)
        << error_.message;
  }
  void set_of_group(std::uint32_t group, const char* name, const char* value) {
    ASSERT_EQ(troupe_options_set_of_group(options_, group, name, value, &error_), TROUPE_OK)
        << error_.message;
  }
  void begin_lane() {
    ASSERT_EQ(troupe_begin_step(session_, 1, &error_), TROUPE_OK) << error_.message;
    ASSERT_EQ(troupe_begin_lane(session_, 0, &error_), TROUPE_OK) << error_.message;
  }
  void add_gradient(std::uint32_t parameter, float value) {
    void* data = nullptr;
    ASSERT_EQ(troupe_before_use(session_, parameter, &error_), TROUPE_OK) << error_.message;
    ASSERT_EQ(troupe_gradient(session_, parameter, &data, nullptr, &error_), TROUPE_OK) << error_.message;
    for (int i = 0; i < 4; ++i) static_cast<float*>(data)[i] += value;
    ASSERT_EQ(troupe_gradient_ready(session_, parameter, &error_), TROUPE_OK) << error_.message;
  }
  troupe_step_outcome end_step() {
    troupe_step_outcome outcome{};
    EXPECT_EQ(troupe_end_lane(session_, 2, &error_), TROUPE_OK) << error_.message;
    EXPECT_EQ(troupe_finish_step(session_, nullptr, 0, &outcome, &error_), TROUPE_OK) << error_.message;
    return outcome;
  }
  float* values(std::uint32_t parameter) {
    void* data = nullptr;
    EXPECT_EQ(troupe_publish_all(session_, &error_), TROUPE_OK) << error_.message;
    EXPECT_EQ(troupe_parameter(session_, parameter, &data, nullptr, &error_), TROUPE_OK) << error_.message;
    return static_cast<float*>(data);
  }
  void leave() {
    ASSERT_EQ(troupe_leave(session_, &error_), TROUPE_OK) << error_.message;
    troupe_session_free(session_);
    session_ = nullptr;
  }
  void own(const char* name, std::array<float, 4>& tensor) {
    const std::int64_t elements = 4;
    ASSERT_EQ(troupe_options_add_tensor(options_, name, tensor.data(), TROUPE_F32, &elements, nullptr,
                                        nullptr, 1, 0, &error_),
              TROUPE_OK)
        << error_.message;
  }
};

TEST_F(CTrainer, StepsGroupsTheirOwnWayAndFrozenOnesNot) {
  add_vector("whole");
  add_vector("half");
  add_vector("frozen", TROUPE_FROZEN);
  set_of_group(0, "optimizer", "sgd");
  set_of_group(1, "optimizer", "sgd");
  set_of_group(1, "learning-rate-factor", "0.5");
  ASSERT_EQ(troupe_options_set_parameter_group(options_, 1, 1, &error_), TROUPE_OK) << error_.message;
  join();
  values(2)[3] = 7;

  begin_lane();
  for (std::uint32_t p : {1U, 0U}) add_gradient(p, 2);
  void* data = nullptr;
  EXPECT_EQ(troupe_gradient(session_, 2, &data, nullptr, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("frozen"));
  EXPECT_EQ(end_step().committed, 1);

  EXPECT_EQ(values(0)[3], -2);
  EXPECT_EQ(values(1)[3], -1);
  EXPECT_EQ(values(2)[3], 7);
}

TEST_F(CTrainer, DividesByTheWeightsOfLanes) {
  add_vector("weight");
  set("optimizer", "sgd");
  set("weight-decay", "0");
  set("loss-divisor", "4");
  join();

  begin_lane();
  add_gradient(0, 3);
  EXPECT_EQ(troupe_end_weighted_lane(session_, 1, -1, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("not negative"));
  ASSERT_EQ(troupe_end_weighted_lane(session_, 5, 6, &error_), TROUPE_OK) << error_.message;
  troupe_step_outcome outcome{};
  ASSERT_EQ(troupe_finish_step(session_, nullptr, 0, &outcome, &error_), TROUPE_OK) << error_.message;

  EXPECT_EQ(outcome.weight, 6);
  EXPECT_DOUBLE_EQ(outcome.loss, 5.0 * 4 / 6);
  EXPECT_DOUBLE_EQ(outcome.gradient_norm, 4);
  EXPECT_EQ(values(0)[3], -2);

  begin_lane();
  add_gradient(0, 3);
  ASSERT_EQ(troupe_end_weighted_lane(session_, 0, 0, &error_), TROUPE_OK) << error_.message;
  ASSERT_EQ(troupe_finish_step(session_, nullptr, 0, &outcome, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(outcome.committed, 0);
  EXPECT_THAT(std::string(outcome.reason), HasSubstr("no lane of the step has a target"));
  EXPECT_EQ(values(0)[3], -2);
}

TEST_F(CTrainer, ScalesLossesAndBacksOffAfterNonFiniteGradients) {
  add_vector("weight");
  set("loss-scaling", "dynamic");
  set("loss-scale", "8");
  set("loss-scale-backoff", "0.25");
  join();
  EXPECT_EQ(troupe_loss_scale(session_), 8);

  begin_lane();
  add_gradient(0, 3 * 8);
  auto outcome = end_step();
  EXPECT_EQ(outcome.committed, 1) << outcome.reason;
  EXPECT_EQ(outcome.loss_scale, 8);
  EXPECT_EQ(outcome.gradient_norm, 6) << "of four elements of 3";
  EXPECT_EQ(values(0)[0], -3);

  begin_lane();
  add_gradient(0, std::numeric_limits<float>::infinity());
  outcome = end_step();
  EXPECT_EQ(outcome.committed, 0);
  EXPECT_EQ(outcome.nonfinite_gradients, 4);
  EXPECT_EQ(troupe_loss_scale(session_), 2);
  EXPECT_EQ(values(0)[0], -3);
}

TEST_F(CTrainer, GoesThroughUnitsInItsPasses) {
  set("strategy", "zero3");
  set("lanes", "2");
  for (std::uint32_t p = 0; p < 2; ++p) {
    add_vector(p == 0 ? "first" : "second");
    ASSERT_EQ(troupe_options_set_unit(options_, p, p, &error_), TROUPE_OK) << error_.message;
  }
  for (const auto kind : {TROUPE_FORWARD, TROUPE_BACKWARD}) {
    for (const int round : {0, 1})
      ASSERT_EQ(troupe_options_add_pass(options_, kind, round, 0, 2, &error_), TROUPE_OK) << error_.message;
  }
  join();

  ASSERT_EQ(troupe_begin_step(session_, 1, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(troupe_begin_lane(session_, 0, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("call begin_pass() instead"));
  for (std::size_t pass = 0; pass < 2; ++pass) {
    ASSERT_EQ(troupe_begin_pass(session_, pass, &error_), TROUPE_OK) << error_.message;
    for (std::uint32_t p : {0U, 1U})
      ASSERT_EQ(troupe_before_use(session_, p, &error_), TROUPE_OK) << error_.message;
  }
  for (std::size_t pass = 2; pass < 4; ++pass) {
    ASSERT_EQ(troupe_begin_pass(session_, pass, &error_), TROUPE_OK) << error_.message;
    for (std::uint32_t p : {1U, 0U}) add_gradient(p, static_cast<float>(pass));
    ASSERT_EQ(troupe_end_lane(session_, 2, &error_), TROUPE_OK) << error_.message;
  }
  troupe_step_outcome outcome{};
  ASSERT_EQ(troupe_finish_step(session_, nullptr, 0, &outcome, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(outcome.committed, 1) << outcome.reason;
  EXPECT_DOUBLE_EQ(outcome.gradient_norm, 2.5 * std::sqrt(8.0)) << "eight elements of (2 + 3) / 2";
}

// Covers state-4.
TEST_F(CTrainer, SavesItsOwnTensorsAndChoosesWhatRestoresTake) {
  tests::ScratchFolder saved;
  tests::ScratchFolder other;
  set("checkpoints", saved.path());
  set("optimizer", "adam");
  add_vector("weight");
  std::array<float, 4> average{1, 2, 3, 4};
  own("average", average);
  join();
  begin_lane();
  add_gradient(0, 1);
  end_step();
  const float trained = values(0)[0];
  ASSERT_EQ(troupe_save(session_, nullptr, nullptr, &error_), TROUPE_OK) << error_.message;
  ASSERT_EQ(troupe_wait_saves(session_, &error_), TROUPE_OK) << error_.message;
  leave();
  average = {};
  std::array<float, 4> added{5, 5, 5, 5};
  own("added", added);
  set("checkpoints", other.path());
  troupe_restored restored{};

  join();
  ASSERT_EQ(troupe_restore_with(session_, nullptr, &restored, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(restored.found, 0) << "in the other folder";
  const std::string directory = saved.path();
  troupe_restore_options options{};
  options.directory = directory.c_str();
  options.strictness = "sometimes";
  EXPECT_EQ(troupe_restore_with(session_, &options, &restored, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("raise_unexpected"));
  options.strictness = "return_all";
  EXPECT_EQ(troupe_restore_with(session_, &options, &restored, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message,
               "return_all returns keys, which C cannot receive; use log_unexpected or log_all");
  options.strictness = "log_unexpected";
  options.weights_only = 1;
  ASSERT_EQ(troupe_restore_with(session_, &options, &restored, &error_), TROUPE_OK) << error_.message;

  EXPECT_EQ(restored.found, 1);
  EXPECT_EQ(restored.is_local, 0);
  EXPECT_STREQ(restored.name, "step_00000001");
  EXPECT_EQ(restored.step, 0) << "the steps start anew, as the optimizer's do";
  EXPECT_EQ(average[3], 4);
  EXPECT_EQ(added[3], 5) << "the checkpoint lacks it";
  EXPECT_EQ(values(0)[0], trained);
  // Adam's first step is as long as the learning rate, whatever the gradient; with moments the second one is
  // not.
  begin_lane();
  add_gradient(0, 100);
  end_step();
  EXPECT_NEAR(values(0)[0], trained - 1, 1e-6);
  leave();

  join();
  options.strictness = nullptr;
  EXPECT_EQ(troupe_restore_with(session_, &options, &restored, &error_), TROUPE_CORRUPT);
  EXPECT_THAT(std::string(error_.message),
              HasSubstr("Unexpected keys (requested, but not in the checkpoint): added"));
}

// Covers local-3.
TEST_F(CTrainer, SavesLocallyAndFindsIt) {
  tests::ScratchFolder folder;
  set("local-checkpoints", folder.path() + "/of-{rank}");
  add_vector("weight");
  join();
  values(0)[2] = 9;
  std::uint64_t sequence = 0;
  ASSERT_EQ(troupe_save_local(session_, R"({"epoch":3})", &sequence, &error_), TROUPE_OK) << error_.message;
  ASSERT_EQ(troupe_wait_local_saves(session_, &error_), TROUPE_OK) << error_.message;
  std::int32_t found = 0;
  troupe_save_result save{};
  ASSERT_EQ(troupe_take_local_save(session_, &found, &save, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(found, 1);
  EXPECT_EQ(save.sequence, sequence);
  EXPECT_EQ(save.committed, 1) << save.message;
  ASSERT_EQ(troupe_take_local_save(session_, &found, &save, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(found, 0);
  leave();
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/of-0"));

  join();
  troupe_restored restored{};
  ASSERT_EQ(troupe_restore(session_, nullptr, &restored, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(restored.found, 1);
  EXPECT_EQ(restored.is_local, 1);
  EXPECT_STREQ(restored.passed_over, "");
  char text[64];
  troupe_restored_common(session_, text, sizeof text);
  EXPECT_STREQ(text, R"({"epoch":3})");
  EXPECT_EQ(values(0)[2], 9);
}

TEST_F(CTrainer, AnswersWhatCannotBe) {
  add_vector("weight");
  const std::int64_t shape = 4;
  const std::int64_t behind = 1;
  const std::int64_t many = std::int64_t{1} << 62;
  float memory[4] = {};
  const auto refuses = [&](troupe_status status, const std::string& says) {
    EXPECT_EQ(status, TROUPE_INVALID_ARGUMENT) << says;
    EXPECT_THAT(std::string(error_.message), HasSubstr(says));
  };
  const auto add = [&](const char* name, void* data, troupe_dtype dtype, const std::int64_t* local,
                       const std::int64_t* whole, const std::int64_t* offset, std::int32_t replica = 0) {
    return troupe_options_add_tensor(options_, name, data, dtype, local, whole, offset, 1, replica, &error_);
  };
  refuses(add(nullptr, memory, TROUPE_F32, &shape, nullptr, nullptr), "name is NULL");
  refuses(add("", memory, TROUPE_F32, &shape, nullptr, nullptr), "empty key");
  refuses(add("t", nullptr, TROUPE_F32, &shape, nullptr, nullptr), "memory is NULL");
  refuses(add("t", memory, TROUPE_F32, nullptr, nullptr, nullptr), "shape is NULL");
  refuses(add("t", memory, static_cast<troupe_dtype>(99), &shape, nullptr, nullptr), "99 is not a dtype");
  refuses(add("t", memory, TROUPE_F32, &shape, &shape, nullptr), "offset is NULL");
  refuses(add("t", memory, TROUPE_F32, &shape, nullptr, &shape), "global_shape is NULL");
  refuses(add("t", memory, TROUPE_F32, &shape, &shape, &behind), "does not lie in its global tensor");
  refuses(add("t", memory, TROUPE_F32, &many, nullptr, nullptr), "2^63 bytes");
  refuses(add("t", memory, TROUPE_F32, &shape, nullptr, nullptr, -1), "has replica -1");
  refuses(troupe_options_set_of_group(options_, 1, "beta1", "0.9", &error_), "the next one is 0, found 1");
  refuses(troupe_options_set_of_group(options_, 0, "lanes", "1", &error_), "have no option \"lanes\"");
  refuses(troupe_options_set_of_group(options_, 0, "beta1", "2", &error_),
          "beta1: expected a number from 0 to 1");
  refuses(troupe_options_set_of_group(options_, 0, nullptr, "2", &error_), "name is NULL");
  refuses(troupe_options_set_of_group(options_, 0, "beta1", nullptr, &error_), "value is NULL");
  refuses(troupe_options_set_of_group(nullptr, 0, "beta1", "0", &error_), "options is NULL");
  refuses(troupe_options_set_parameter_group(options_, 1, 0, &error_), "there is no parameter 1");
  refuses(troupe_options_add_pass(options_, static_cast<troupe_pass>(4), 0, 0, 1, &error_),
          "4 is not a pass");
  refuses(troupe_options_add_pass(nullptr, TROUPE_FORWARD, 0, 0, 1, &error_), "options is NULL");
  EXPECT_EQ(troupe_loss_scale(nullptr), 1);
  join();
  refuses(troupe_begin_pass(session_, 0, &error_), "there is no list of passes");
  EXPECT_EQ(troupe_save_local(session_, nullptr, nullptr, &error_), TROUPE_UNAVAILABLE);
  std::int32_t found = 0;
  EXPECT_EQ(troupe_take_local_save(session_, &found, nullptr, &error_), TROUPE_OK);
  EXPECT_EQ(found, 0);
  refuses(troupe_take_local_save(session_, nullptr, nullptr, &error_), "found is NULL");
  leave();
  ASSERT_EQ(troupe_options_set_parameter_group(options_, 0, 3, &error_), TROUPE_OK);
  EXPECT_EQ(troupe_session_join(options_, &session_, &error_), TROUPE_INVALID_ARGUMENT) << "no such group";
  ASSERT_EQ(troupe_options_set_parameter_group(options_, 0, 0, &error_), TROUPE_OK);
  set("strategy", "zero3");
  ASSERT_EQ(troupe_options_set_unit(options_, 0, 0, &error_), TROUPE_OK);
  ASSERT_EQ(troupe_options_add_pass(options_, TROUPE_FORWARD, -1, 0, 9, &error_), TROUPE_OK);
  EXPECT_EQ(troupe_session_join(options_, &session_, &error_), TROUPE_INVALID_ARGUMENT) << "no such pass";
}

}  // namespace
}  // namespace troupe::actors

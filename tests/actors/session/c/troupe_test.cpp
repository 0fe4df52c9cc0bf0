#include "actors/session/c/troupe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "tests/actors/session/c/one_rank.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

TEST_F(CInterface, TrainsAndLeaves) {
  set("optimizer", "sgd");
  set("weight-decay", "0");
  join();
  EXPECT_EQ(troupe_rank(session_), 0);
  EXPECT_EQ(troupe_world_size(session_), 1);
  ASSERT_EQ(troupe_lane_count(session_), 1);
  EXPECT_EQ(troupe_lane(session_, 1), -1);
  EXPECT_EQ(troupe_parameter_count(session_), 2u);

  troupe_step_outcome outcome;
  ASSERT_NO_FATAL_FAILURE(step(&outcome));

  EXPECT_EQ(outcome.step, 0);
  EXPECT_EQ(outcome.committed, 1);
  EXPECT_EQ(outcome.loss, 2);
  EXPECT_FLOAT_EQ(static_cast<float>(outcome.gradient_norm), std::sqrt(11.0F));
  EXPECT_EQ(troupe_next_step(session_), 1);
  ASSERT_EQ(troupe_publish_all(session_, &error_), TROUPE_OK);
  void* data = nullptr;
  std::size_t bytes = 0;
  ASSERT_EQ(troupe_parameter(session_, 0, &data, &bytes, &error_), TROUPE_OK);
  ASSERT_EQ(bytes, 6 * sizeof(float));
  EXPECT_EQ(static_cast<float*>(data)[5], -0.5F) << "0 - 0.5 x 1";
  ASSERT_EQ(troupe_parameter(session_, 1, &data, &bytes, &error_), TROUPE_OK);
  EXPECT_EQ(bytes, 10u);
  EXPECT_EQ(troupe_leave(session_, &error_), TROUPE_OK) << error_.message;
}

TEST_F(CInterface, JoinsAgainOnlyAfterTheLossOfAnotherRank) {
  EXPECT_EQ(troupe_session_join_again(nullptr, &session_, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_session_join_again(options_, &session_, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "session is NULL");
  set("stays", "true");
  join();
  EXPECT_EQ(troupe_session_join_again(options_, &session_, nullptr), TROUPE_INVALID_ARGUMENT);
  error_.status = TROUPE_OK;
  EXPECT_EQ(troupe_session_join_again(options_, &session_, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_NE(session_, nullptr) << "nothing has failed";

  // Without `troupe launch` nobody puts another process in the place of a lost rank.
  for (const auto& [status, message] :
       {std::pair(TROUPE_IO, "the disk is full"), std::pair(TROUPE_PEER_LOST, "rank 1 was lost")}) {
    if (session_ == nullptr) join();
    error_.status = status;
    std::strcpy(error_.message, message);

    EXPECT_EQ(troupe_session_join_again(options_, &session_, &error_), status);

    EXPECT_EQ(session_, nullptr);
    EXPECT_EQ(error_.status, status);
    EXPECT_STREQ(error_.message, message);
  }
}

TEST_F(CInterface, SavesAndRestoresWithWhatTheTrainerAdds) {
  tests::ScratchFolder folder;
  set("checkpoints", folder.path());
  join();
  step();
  std::uint64_t sequence = 77;
  ASSERT_EQ(troupe_save(session_, R"({"epoch":3,"note":"0.25"})", &sequence, &error_), TROUPE_OK)
      << error_.message;
  ASSERT_EQ(troupe_wait_saves(session_, &error_), TROUPE_OK) << error_.message;
  std::int32_t found = 0;
  troupe_save_result save;
  ASSERT_EQ(troupe_take_save(session_, &found, &save, &error_), TROUPE_OK);
  ASSERT_EQ(found, 1);
  EXPECT_EQ(save.committed, 1) << save.message;
  EXPECT_EQ(save.sequence, sequence);
  EXPECT_STREQ(save.name, "step_00000001");
  ASSERT_EQ(troupe_take_save(session_, &found, &save, &error_), TROUPE_OK);
  EXPECT_EQ(found, 0);
  ASSERT_EQ(troupe_leave(session_, &error_), TROUPE_OK) << error_.message;
  troupe_session_free(session_);
  session_ = nullptr;

  join();
  troupe_restored restored;
  ASSERT_EQ(troupe_restore(session_, nullptr, &restored, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(restored.found, 1);
  EXPECT_EQ(restored.step, 1);
  EXPECT_STREQ(restored.name, "step_00000001");
  char text[8];
  const std::string common = R"({"epoch":3,"note":"0.25"})";
  EXPECT_EQ(troupe_restored_common(session_, text, sizeof text), common.size() + 1);
  EXPECT_EQ(text, common.substr(0, 7)) << "cut, and ended";
  ASSERT_EQ(troupe_leave(session_, &error_), TROUPE_OK);
}

TEST_F(CInterface, SaysWhatIsWrongWithAnOption) {
  struct Wrong {
    const char* name;
    const char* value;
    const char* says;
  };
  for (const auto& [name, value, says] : {
           Wrong{"lane", "2", "there is no option \"lane\""},
           Wrong{"lanes", "-1", "lanes: expected a whole number from 0"},
           Wrong{"lanes", "2x", "found \"2x\""},
           Wrong{"strategy", "zero9", "zero9"},
           Wrong{"overlap", "yes", "overlap: expected true or false, found \"yes\""},
           Wrong{"optimizer", "adamax", "optimizer: expected sgd or adam or adamw or lion or muon, found"},
           Wrong{"clip-norm", "nan", "clip-norm: expected a number"},
           Wrong{"staging-mebibytes", "0", "staging-mebibytes: expected a whole number from 1"},
       }) {
    EXPECT_EQ(troupe_options_set(options_, name, value, &error_), TROUPE_INVALID_ARGUMENT) << name;
    EXPECT_EQ(error_.status, TROUPE_INVALID_ARGUMENT);
    EXPECT_THAT(std::string(error_.message), HasSubstr(says));
  }
}

TEST_F(CInterface, TakesEveryOptionThatItNames) {
  std::string names = troupe_option_names();
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < names.size(); begin = names.find('\n', begin) + 1, ++count) {
    const auto name = names.substr(begin, names.find(':', begin) - begin);
    EXPECT_EQ(troupe_options_set(options_, name.c_str(), "no such value \x01", nullptr) == TROUPE_OK,
              name == "checkpoints" || name == "local-checkpoints" || name == "f32-gradients")
        << name << ": directories are taken as they are, all else is checked";
  }
  EXPECT_EQ(count, 60u);
}

TEST_F(CInterface, TakesNothingForNull) {
  const std::int64_t shape = 1;
  EXPECT_EQ(troupe_options_set(nullptr, "lanes", "1", &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_options_set(options_, nullptr, "1", &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_options_set(options_, "lanes", nullptr, nullptr), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_options_add_parameter(options_, nullptr, &shape, 1, TROUPE_F32, 0, &error_),
            TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_options_add_parameter(options_, "w", nullptr, 1, TROUPE_F32, 0, &error_),
            TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_options_add_parameter(options_, "w", &shape, 1, static_cast<troupe_dtype>(9), 0, &error_),
            TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("9 is not a dtype"));
  EXPECT_EQ(troupe_options_add_parameter(options_, "w", &shape, 1, TROUPE_F32, 64, &error_),
            TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_session_join(nullptr, &session_, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_session_join(options_, nullptr, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_begin_step(nullptr, 0.1, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("troupe_session_join() makes one"));
  EXPECT_EQ(troupe_rank(nullptr), -1);
  EXPECT_EQ(troupe_lane(nullptr, 0), -1);
  EXPECT_EQ(troupe_restored_common(nullptr, nullptr, 0), 1u);
  troupe_session_free(nullptr);
  troupe_options_free(nullptr);
}

TEST_F(CInterface, AnswersCallsOutOfTurn) {
  join();
  void* data = nullptr;
  EXPECT_EQ(troupe_gradient(session_, 0, &data, nullptr, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("call begin_step() first"));
  EXPECT_EQ(troupe_parameter(session_, 9, &data, nullptr, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("there is no parameter 9"));
  EXPECT_EQ(troupe_parameter(session_, 0, nullptr, nullptr, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_save(session_, nullptr, nullptr, &error_), TROUPE_UNAVAILABLE);
  EXPECT_THAT(std::string(error_.message), HasSubstr("no directory for checkpoints"));
  EXPECT_EQ(troupe_on_compute_stream(session_, nullptr, nullptr, &error_), TROUPE_INVALID_ARGUMENT);
  ASSERT_EQ(troupe_leave(session_, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(troupe_begin_step(session_, 0.1, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("the session was left"));
}

TEST_F(CInterfaceOfUnits, TrainsByUnitAndReadsThemInAnEvaluation) {
  ASSERT_EQ(troupe_unit_count(session_), 2U);
  ASSERT_EQ(troupe_begin_step(session_, 0.5, &error_), TROUPE_OK) << error_.message;
  ASSERT_EQ(troupe_begin_lane(session_, 0, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(acquire(0)[5], 5);
  ASSERT_EQ(troupe_release(session_, 0, &error_), TROUPE_OK) << error_.message;
  acquire(1);
  ASSERT_EQ(troupe_begin_backward(session_, &error_), TROUPE_OK) << error_.message;
  for (const std::uint32_t unit : {1U, 0U}) {
    float* gradient = nullptr;
    acquire(unit, &gradient);
    gradient[0] += 2;
    ASSERT_EQ(troupe_gradient_ready(session_, unit, &error_), TROUPE_OK) << error_.message;
  }
  ASSERT_EQ(troupe_end_lane(session_, 1, &error_), TROUPE_OK) << error_.message;
  troupe_step_outcome outcome;
  ASSERT_EQ(troupe_finish_step(session_, nullptr, 0, &outcome, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(outcome.committed, 1) << outcome.reason;

  ASSERT_EQ(troupe_begin_evaluation(session_, &error_), TROUPE_OK) << error_.message;
  const float* weight = acquire(0);
  EXPECT_EQ(weight[0], -1) << "0 - 0.5 x 2";
  EXPECT_EQ(weight[5], 5);
  void* bias = acquire(1);
  std::uint16_t bits = 0;
  std::memcpy(&bits, bias, sizeof bits);
  EXPECT_EQ(bits, 0x4110) << "10 - 0.5 x 2 is 9, in bf16";
  ASSERT_EQ(troupe_end_evaluation(session_, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(troupe_leave(session_, &error_), TROUPE_OK) << error_.message;
}

class CInterfaceOfUnitsInAnOrder : public CInterfaceOfUnits {
 protected:
  void declare() override { set("forward-order", "1,0"); }
};

TEST_F(CInterfaceOfUnitsInAnOrder, AcquiresThemInIt) {
  ASSERT_EQ(troupe_begin_step(session_, 0.5, &error_), TROUPE_OK) << error_.message;
  ASSERT_EQ(troupe_begin_lane(session_, 0, &error_), TROUPE_OK) << error_.message;
  acquire(1);
  EXPECT_EQ(acquire(0)[5], 5);
  EXPECT_EQ(troupe_acquire(session_, 1, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("unit 1 is done in forward"));
  ASSERT_EQ(troupe_begin_backward(session_, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(acquire(0)[5], 5);
  acquire(1);
}

TEST_F(CInterfaceOfUnits, LearnsAnOrder) {
  ASSERT_EQ(troupe_begin_learning(session_, &error_), TROUPE_OK) << error_.message;
  acquire(1);
  acquire(0);
  EXPECT_EQ(troupe_begin_step(session_, 0.5, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("the order of units is being learned"));
  ASSERT_EQ(troupe_begin_backward(session_, &error_), TROUPE_OK) << error_.message;
  acquire(0);
  acquire(1);
  ASSERT_EQ(troupe_end_learning(session_, &error_), TROUPE_OK) << error_.message;
  ASSERT_EQ(troupe_begin_step(session_, 0.5, &error_), TROUPE_OK) << error_.message;
  ASSERT_EQ(troupe_begin_lane(session_, 0, &error_), TROUPE_OK) << error_.message;
  acquire(1);
  EXPECT_EQ(acquire(0)[5], 5);
  EXPECT_EQ(troupe_acquire(session_, 1, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("unit 1 is done in forward"));
  EXPECT_EQ(troupe_end_learning(session_, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("end_learning() was called out of turn"));
}

/// One block: with 100 in it the scale is 1/4, and what it holds of 100 is 96.
TEST_F(CInterface, HasParametersSuchAsBlocksHold) {
  set("optimizer", "sgd");
  set("weight-decay", "0");
  ASSERT_EQ(troupe_options_set_gather_dtype(options_, 1, "f8_e4m3", &error_), TROUPE_OK) << error_.message;
  join();
  void* data = nullptr;
  ASSERT_EQ(troupe_parameter(session_, 1, &data, nullptr, &error_), TROUPE_OK) << error_.message;
  auto* bias = static_cast<std::uint16_t*>(data);
  const std::array first{100.5F, 0.109375F, 3.0F, 3.0F, 0.5F};
  for (std::size_t i = 0; i < first.size(); ++i) bias[i] = core::float_to_bf16(first[i]);

  ASSERT_NO_FATAL_FAILURE(step());

  ASSERT_EQ(troupe_publish_all(session_, &error_), TROUPE_OK) << error_.message;
  const std::array expected{96.0F, -0.375F, 2.5F, 2.5F, 0.0F};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(core::bf16_to_float(bias[i]), expected[i]) << i;
}

TEST_F(CInterface, RefusesBlocksWhereTheyCannotBe) {
  EXPECT_EQ(troupe_options_set_gather_dtype(options_, 2, "f8_e4m3", &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "there is no parameter 2: 2 were added; add it first");
  EXPECT_EQ(troupe_options_set_gather_dtype(options_, 1, nullptr, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_options_set_gather_dtype(options_, 1, "f9", &error_), TROUPE_INVALID_ARGUMENT);
  ASSERT_EQ(troupe_options_set_gather_dtype(options_, 0, "f8_e5m2", &error_), TROUPE_OK);
  EXPECT_EQ(troupe_session_join(options_, &session_, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message),
              HasSubstr("weight cannot be gathered as f8_e5m2 because it is f32"));
}

TEST_F(CInterface, RefusesAnOrderThatLacksAUnit) {
  for (std::uint32_t p = 0; p < 2; ++p)
    ASSERT_EQ(troupe_options_set_unit(options_, p, p, &error_), TROUPE_OK) << error_.message;
  set("backward-order", "1");

  EXPECT_EQ(troupe_session_join(options_, &session_, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("the backward order lacks unit 0"));
}

TEST_F(CInterfaceOfUnits, AnswersCallsOutOfTurn) {
  void* data = nullptr;
  EXPECT_EQ(troupe_acquire(session_, 0, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error_.message), HasSubstr("acquire() was called out of turn"));
  EXPECT_EQ(troupe_begin_backward(session_, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_parameter(session_, 0, &data, nullptr, &error_), TROUPE_UNAVAILABLE);
  EXPECT_THAT(std::string(error_.message), HasSubstr("call acquire(0)"));
  EXPECT_EQ(troupe_write_parameter(session_, 0, nullptr, nullptr, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "fill is NULL");
  EXPECT_EQ(troupe_options_set_unit(options_, 2, 0, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "there is no parameter 2: 2 were added; add it first");
  EXPECT_EQ(troupe_options_set_unit(nullptr, 0, 0, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_unit_count(nullptr), 0U);
  ASSERT_EQ(troupe_begin_step(session_, 0.5, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(troupe_begin_evaluation(session_, &error_), TROUPE_INVALID_ARGUMENT);
  ASSERT_EQ(troupe_begin_lane(session_, 0, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(troupe_acquire(session_, 7, &error_), TROUPE_INVALID_ARGUMENT);
  EXPECT_EQ(troupe_write_parameter(session_, 0, fill_by_number, nullptr, &error_), TROUPE_INVALID_ARGUMENT);
}

/// Appends the values.
void keep(std::int64_t first, const float* values, std::size_t count, void* kept) {
  auto& all = *static_cast<std::vector<float>*>(kept);
  EXPECT_EQ(first, static_cast<std::int64_t>(all.size()));
  all.insert(all.end(), values, values + count);
}

TEST_F(CInterface, StepsWhatWasWrittenOfTheOptimizersState) {
  join();
  std::uint32_t weight = 0;
  const std::int64_t steps[] = {3, 2};
  ASSERT_EQ(troupe_write_state(session_, 0, "exp_avg", fill_by_number, &weight, &error_), TROUPE_OK)
      << error_.message;
  ASSERT_EQ(troupe_write_steps_taken(session_, steps, 2, &error_), TROUPE_OK) << error_.message;
  EXPECT_EQ(troupe_next_step(session_), 3);

  step();

  std::vector<float> moments;
  std::vector<float> others;
  std::int64_t taken[2] = {};
  ASSERT_EQ(troupe_read_state(session_, 0, "exp_avg", keep, &moments, &error_), TROUPE_OK) << error_.message;
  ASSERT_EQ(troupe_read_state(session_, 1, "exp_avg_sq", keep, &others, &error_), TROUPE_OK);
  ASSERT_EQ(troupe_steps_taken(session_, taken, 2, &error_), TROUPE_OK) << error_.message;
  ASSERT_EQ(moments.size(), 6u);
  for (std::size_t i = 0; i < moments.size(); ++i)
    EXPECT_FLOAT_EQ(moments[i], 0.9f * static_cast<float>(i) + 0.1f) << i;
  ASSERT_EQ(others.size(), 5u);
  for (const float other : others) EXPECT_FLOAT_EQ(other, 0.001f);
  EXPECT_EQ(taken[0], 4);
  EXPECT_EQ(taken[1], 3);
  EXPECT_EQ(troupe_next_step(session_), 4);
}

TEST_F(CInterface, RefusesStateThatTheOptimizerCannotHave) {
  join();
  std::uint32_t weight = 0;
  std::int64_t steps[] = {1, -1};
  const auto refuses = [&](troupe_status status, const std::string& says) {
    EXPECT_EQ(status, TROUPE_INVALID_ARGUMENT) << says;
    EXPECT_THAT(std::string(error_.message), HasSubstr(says));
  };
  refuses(troupe_write_state(session_, 0, "momentum_buffer", fill_by_number, &weight, &error_),
          "keeps no 'momentum_buffer' of weight, but: exp_avg, exp_avg_sq");
  refuses(troupe_read_state(session_, 2, "exp_avg", keep, nullptr, &error_), "there is no parameter 2");
  refuses(troupe_read_state(session_, 0, nullptr, keep, nullptr, &error_), "state is NULL");
  refuses(troupe_read_state(session_, 0, "exp_avg", nullptr, nullptr, &error_), "take is NULL");
  refuses(troupe_write_state(session_, 0, "exp_avg", nullptr, nullptr, &error_), "fill is NULL");
  refuses(troupe_write_steps_taken(session_, steps, 2, &error_), "not negative");
  refuses(troupe_write_steps_taken(session_, steps, 1, &error_), "for each of 2 parameters");
  refuses(troupe_steps_taken(session_, steps, 1, &error_), "expected room for the steps of 2 parameters");

  step();

  steps[1] = 1;
  refuses(troupe_write_state(session_, 0, "exp_avg", fill_by_number, &weight, &error_),
          "after the first step");
  refuses(troupe_write_steps_taken(session_, steps, 2, &error_), "after the first step");
}

TEST_F(CInterface, GivesUpWithTheReason) {
  join();
  troupe_abandon(session_, "the data ended early", &error_);
  EXPECT_EQ(error_.status, TROUPE_ABORTED);
  EXPECT_STREQ(error_.message, "the data ended early");
}

TEST_F(CInterface, CutsALongMessage) {
  const std::string name = "/proc/" + std::string(5000, 'x');
  EXPECT_EQ(troupe_options_set(options_, "checkpoints", name.c_str(), &error_), TROUPE_OK);
  EXPECT_NE(troupe_session_join(options_, &session_, &error_), TROUPE_OK);
  EXPECT_EQ(std::strlen(error_.message), sizeof error_.message - 1);
  EXPECT_EQ(session_, nullptr);
}

}  // namespace
}  // namespace troupe::actors

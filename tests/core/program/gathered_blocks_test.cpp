#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/program/job_programs.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/memory.hpp"
#include "core/program/program_file.hpp"
#include "core/program/program_text.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

using testing::HasSubstr;

/// A byte for each element and one for 32 of them, in gathers alone.
TEST(GathersInBlocks, TakeAByteForEachElementAndBlock) {
  for (const auto strategy : {Strategy::zero1, Strategy::zero3}) {
    const SomeJob job{.strategy = strategy, .ranks = 4};
    auto inputs = inputs_of(job);
    inputs.classes[0].gathered = DType::f8_e5m2;
    const Program blocks = plan_program(inputs, {0}).value();
    const Program stored = program_of(job);
    std::vector<ProgramEntry> gathers;
    for_each_launch(blocks, [&](const Launch& launch) {
      if (launch.entry->tensor.kind == TensorKind::parameters) gathers.push_back(*launch.entry);
    });

    ASSERT_FALSE(gathers.empty());
    for (const auto& gather : gathers) {
      EXPECT_EQ(gather.wire, DType::f8_e5m2);
      EXPECT_EQ(bytes_sent(gather, 0), (256 + 8) * 3);
    }
    EXPECT_EQ(memory_of(blocks).blocks, 1024 + 32);
    EXPECT_EQ(memory_of(blocks).staging, memory_of(stored).staging + 1024 + 32);
    EXPECT_EQ(memory_of(blocks).at_rest(), memory_of(stored).at_rest());
    const auto communicator = communicator_of(gathers[0]);
    EXPECT_NE(hash(blocks, communicator), hash(stored, communicator));
  }
}

TEST(GathersInBlocks, AreRefusedWhereTheyCannotBe) {
  const auto refusal = [](auto change) {
    auto inputs = inputs_of({.ranks = 4});
    inputs.classes[0].gathered = DType::f8_e4m3;
    change(inputs);
    const auto program = plan_program(inputs, {0});
    return program ? std::string() : program.error().message;
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& inputs) { inputs.classes[0].storage = DType::f32; }),
              HasSubstr("parameters of f32 with main values in f32 cannot be gathered as f8_e4m3"));
  EXPECT_THAT(refusal([](auto& inputs) { inputs.classes[0].gathered = DType::u8; }),
              HasSubstr("cannot be gathered as u8"));
  EXPECT_THAT(refusal([](auto& inputs) { inputs.units[2].tensors[0].elements = 1024 + 128; }),
              HasSubstr("4 shards are not multiples of 256 elements"));
  EXPECT_THAT(refusal([](auto& inputs) { inputs.units[2].tensors[0].trainable = false; }),
              HasSubstr("frozen parameters that are gathered as f8_e4m3"));
}

TEST(GathersInBlocks, AreInFilesOfProgramsThatHaveThem) {
  auto inputs = inputs_of(SomeJob{.strategy = Strategy::zero1, .ranks = 4});
  const auto stored = to_text(file_of(plan_all(inputs).value()));
  inputs.classes[0].gathered = DType::f8_e4m3;
  const auto file = file_of(plan_all(inputs).value());

  EXPECT_EQ(parse_program_file(to_text(file)).value(), file);
  EXPECT_THAT(to_text(file), HasSubstr("\"gathered\": \"f8_e4m3\""));
  EXPECT_THAT(stored, testing::Not(HasSubstr("gathered")));
  auto json = nlohmann::ordered_json::parse(to_text(file));
  json["programs"][0]["program"]["classes"][0]["gathered"] = "i64";
  EXPECT_THAT(parse_program_file(json.dump()).error().message, HasSubstr("cannot be gathered as i64"));
}

}  // namespace
}  // namespace troupe::core

#include "apps/gpt/options/tensor_options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "apps/gpt/options/options.hpp"

namespace troupe::apps::gpt {
namespace {

using testing::HasSubstr;

core::Result<RunOptions> run_of(const std::string& line) {
  Options options;
  CLI::App app;
  add_options(app, options);
  app.parse("--text made-up " + line, false);
  return run_options(std::move(options), nullptr);
}

TEST(TensorOptions, ReachTheRunAndItsReport) {
  const RunOptions run = run_of("--tensor-parallel 4 --sequence-parallel").value();

  EXPECT_EQ(run.trainer.session.training.tensor_parallel, 4);
  EXPECT_TRUE(run.trainer.tensor.sequence_parallel);
  EXPECT_THAT(run.configuration, testing::Contains(testing::Pair("tensor-parallel ranks", "4")));
  EXPECT_THAT(run.configuration, testing::Contains(testing::Pair("sequence parallelism", "on")));

  const RunOptions slices = run_of("--tensor-slices 2").value();
  EXPECT_EQ(slices.trainer.tensor.slices, 2);
  EXPECT_THAT(slices.configuration, testing::Contains(testing::Pair("tensor slices", "2")));
  EXPECT_EQ(run_of("").value().configuration.size() + 1, slices.configuration.size());
  const RunOptions pieces = run_of("--context-pieces 4 --context-parallel 2").value();
  EXPECT_EQ(pieces.trainer.session.training.own_pieces(), 2);
  EXPECT_THAT(pieces.configuration, testing::Contains(testing::Pair("pieces of each sequence", "4")));
  const RunOptions both = run_of("--tensor-slices 8 --tensor-parallel 2").value();
  EXPECT_THAT(both.configuration, testing::Contains(testing::Pair("tensor-parallel ranks", "2")));
  EXPECT_THAT(both.configuration, testing::Contains(testing::Pair("tensor slices", "8")));
}

TEST(TensorOptions, RefuseWhatExcludesEachOther) {
  EXPECT_THAT(run_of("--tensor-parallel 4 --tensor-slices 2").error().message,
              HasSubstr("found --tensor-slices 2 for 4 ranks; choose a multiple"));
  EXPECT_THAT(run_of("--tensor-parallel 2 --tensor-slices 6").error().message,
              HasSubstr("found 6 slices for 2 ranks, which is 3 each; choose --tensor-slices 4"));
  EXPECT_THAT(run_of("--tensor-slices 2 --numerics fast").error().message,
              HasSubstr("use --numerics ordered, or leave --tensor-slices out"));
  EXPECT_THAT(run_of("--tensor-slices 4 --experts 4 --expert-tensor-parallel 2").error().message,
              HasSubstr("leave out --expert-tensor-parallel"));
  EXPECT_THAT(run_of("--sequence-parallel").error().message, HasSubstr("add --tensor-parallel 2 or more"));
  EXPECT_THAT(run_of("--local --tensor-parallel 2").error().message,
              HasSubstr("--local is one rank that computes whole layers"));
  EXPECT_THAT(run_of("--local --tensor-slices 2").error().message,
              HasSubstr("--local is one rank that computes whole layers"));
  EXPECT_THAT(run_of("--local --context-parallel 2").error().message,
              HasSubstr("--local is one rank that computes whole layers"));
  EXPECT_THAT(run_of("--local --context-pieces 2").error().message,
              HasSubstr("--local is one rank that computes whole layers"));
  EXPECT_TRUE(run_of("--context-parallel 2 --tensor-slices 2"));
  EXPECT_TRUE(run_of("--context-parallel 2 --tensor-parallel 2 --sequence-parallel"));
  EXPECT_EQ(run_of("--context-parallel 2").value().trainer.session.training.context_parallel, 2);
  EXPECT_TRUE(run_of("--tensor-slices 3"));
  EXPECT_TRUE(run_of("--tensor-slices 6 --tensor-parallel 3 --sequence-parallel"));
  EXPECT_TRUE(run_of("--tensor-parallel 2 --numerics fast"));
}

}  // namespace
}  // namespace troupe::apps::gpt

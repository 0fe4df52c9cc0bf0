#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "apps/gpt/pretrained/export_model.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "core/errors.hpp"
#include "core/random.hpp"
#include "tests/gpu_session/company.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Result;
using core::Strategy;

struct Decoder {
  const char* name;
  ModelConfig config;

  friend std::ostream& operator<<(std::ostream& out, const Decoder& of) { return out << of.name; }
};

ModelConfig small_model() {
  ModelConfig config{
      .layers = 2, .heads = 4, .width = 16, .feed_forward = 24, .context = 8, .vocabulary = 128};
  config.key_value_heads = 2;
  config.tied_embeddings = false;
  return config;
}

/// The decoders that their config.json tells apart.
Decoder llama() {
  return {"llama", small_model()};
}
Decoder qwen2() {
  ModelConfig config = small_model();
  config.query_key_value_bias = true;
  return {"qwen2", config};
}
Decoder qwen3() {
  ModelConfig config = small_model();
  config.head_dimension = 8;
  config.query_key_norm = true;
  config.tied_embeddings = true;
  return {"qwen3", config};
}
Decoder mixtral() {
  ModelConfig config = small_model();
  config.experts = {.count = 4, .feed_forward = 24, .names = ExpertConfig::Names::mixtral};
  return {"mixtral", config};
}

/// Trains from directories of models, as `gpt --model` does.
class PretrainedOnGpus : public testing::TestWithParam<Decoder> {
 protected:
  void SetUp() override {
    const auto specs = parameters(GetParam().config);
    const auto read = [&](std::size_t parameter, core::ElementRange range, std::span<float> values) {
      initialise(specs[parameter], 5, range, values);
      return Result<void>{};
    };
    ExportOptions options;
    options.directory = folder_.path() + "/model";
    const auto written = export_model(GetParam().config, read, options);
    ASSERT_TRUE(written) << written.error().message;
    std::ofstream text(folder_.path() + "/text");
    for (int i = 0; i < 2000; ++i) text << (i * i % 7 == 3 ? "to be " : "or not ");
  }
  void TearDown() override { EXPECT_EQ(company_.violations(), std::vector<std::string>{}); }

  /// The losses of three steps, and the parameters then.
  using Seen = std::pair<std::vector<double>, std::uint64_t>;

  std::vector<Result<Seen>> train(int ranks, Strategy strategy, core::DType dtype) {
    const auto model = PretrainedModel::open(folder_.path() + "/model", 8).value();
    const auto corpus = Corpus::open(folder_.path() + "/text", 8).value();
    TrainerOptions options;
    options.model = model->config();
    options.model.experts.balance = 0.1;
    options.initial = model.get();
    options.arithmetic.dtype = dtype;
    options.microbatch = {.batch = 1, .length = 8};
    options.session.training.strategy = strategy;
    options.session.training.lanes = 4;
    options.session.training.bucket_elements = 1500;
    options.schedule = {.peak = 1e-2, .floor = 1e-3, .warmup = core::Step{1}, .total = core::Step{3}};
    const auto play = [&](actors::RankWorld& world) -> Result<Seen> {
      const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
      Seen seen;
      for (int step = 0; step < 3; ++step) seen.first.push_back(TRY(trainer->step()).loss);
      seen.second = TRY(trainer->parameter_hash());
      TRY(trainer->session().leave());
      return seen;
    };
    return company_.run<Seen>(ranks, play);
  }

 private:
  tests::ScratchFolder folder_;
  actors::EmulatedCompany company_;
};

INSTANTIATE_TEST_SUITE_P(All, PretrainedOnGpus, testing::Values(llama(), qwen2(), qwen3(), mixtral()),
                         testing::PrintToStringParamName());

TEST_P(PretrainedOnGpus, TrainsToTheSameBitsOverAnyRanks) {
  for (const auto dtype : {core::DType::bf16, core::DType::f32}) {
    const auto alone = train(1, Strategy::ddp, dtype)[0];
    ASSERT_TRUE(alone) << alone.error().message;
    EXPECT_LT(alone->first.back(), alone->first.front());

    for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
      for (const auto& seen : train(2, strategy, dtype)) {
        ASSERT_TRUE(seen) << seen.error().message;
        EXPECT_EQ(*seen, *alone) << core::name_of(strategy) << " in " << core::name_of(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt

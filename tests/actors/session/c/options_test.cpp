#include "actors/session/c/options.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

void set(troupe_options& options, std::string_view name, std::string_view value) {
  const auto done = set_option(options, name, value);
  ASSERT_TRUE(done) << done.error().message;
}

// Every value is another than the default, and than that of every option of its type.
// Covers adapter-1.
TEST(OptionsOfTheCInterface, SetWhatTheirNamesSay) {
  troupe_options options;

  set(options, "strategy", "ddp");
  set(options, "numerics", "fast");
  set(options, "lanes", "6");
  set(options, "microbatches", "7");
  set(options, "overlap", "false");
  set(options, "bucket-elements", "1000");
  set(options, "optimizer-instances", "5");
  set(options, "gathered-units", "8");
  set(options, "staging-elements", "9");
  set(options, "wire-dtype", "bf16");
  set(options, "unused-parameters", "zeros");
  set(options, "clip-norm", "2.5");
  set(options, "loss-divisor", "3.5");
  set(options, "optimizer", "sgd");
  set(options, "beta1", "0.1");
  set(options, "beta2", "0.2");
  set(options, "epsilon", "0.3");
  set(options, "weight-decay", "0.4");
  set(options, "momentum", "0.5");
  set(options, "checkpoints", "a");
  set(options, "keep-last", "3");
  set(options, "keep-every", "40");
  set(options, "staging-mebibytes", "2");
  set(options, "device", "cuda:1");
  set(options, "collectives", "tcp");
  set(options, "join-seconds", "1.5");
  set(options, "step-seconds", "2.5");

  const auto& training = options.session.training;
  EXPECT_EQ(training.strategy, core::Strategy::ddp);
  EXPECT_EQ(training.numerics, core::Numerics::fast);
  EXPECT_EQ(training.lanes, 6);
  EXPECT_EQ(training.microbatches, 7);
  EXPECT_FALSE(training.overlap);
  EXPECT_TRUE(training.average);
  EXPECT_EQ(training.bucket_elements, 1000);
  EXPECT_EQ(training.optimizer_instances, 5);
  EXPECT_EQ(training.unused_parameters, core::UnusedParameters::zeros);
  EXPECT_EQ(training.optimizer_instances, 5);
  EXPECT_EQ(training.gathered_units, 8);
  EXPECT_EQ(training.staging_elements, 9);
  EXPECT_EQ(training.wire_dtype, core::DType::bf16);
  EXPECT_EQ(training.clip_norm, 2.5);
  EXPECT_EQ(training.loss_divisor, 3.5);
  EXPECT_EQ(training.optimizer.kind, core::OptimizerKind::sgd);
  EXPECT_EQ(training.optimizer.beta1, 0.1);
  EXPECT_EQ(training.optimizer.beta2, 0.2);
  EXPECT_EQ(training.optimizer.epsilon, 0.3);
  EXPECT_EQ(training.optimizer.weight_decay, 0.4);
  EXPECT_EQ(training.optimizer.momentum, 0.5);
  EXPECT_EQ(options.world.checkpoint_directory, "a");
  EXPECT_EQ(options.session.checkpoint.retention, (core::Retention{.keep_last = 3, .keep_every = 40}));
  EXPECT_EQ(options.session.checkpoint.staging_bytes, std::uint64_t{2} << 20);
  EXPECT_EQ(options.world.device, "cuda:1");
  EXPECT_EQ(options.world.collectives, "tcp");
  EXPECT_EQ(options.session.join_deadline, 1500ms);
  EXPECT_EQ(options.session.step_deadline, 2500ms);

  for (const auto strategy : {core::Strategy::zero1, core::Strategy::zero2, core::Strategy::zero3,
                              core::Strategy::hsdp, core::Strategy::hfsdp}) {
    set(options, "strategy", name_of(strategy));
    EXPECT_EQ(training.strategy, strategy);
  }
  set(options, "average", "false");
  EXPECT_FALSE(training.average);
}

TEST(OptionsOfTheCInterface, SayHowOftenReplicasAreCompared) {
  troupe_options options;
  set(options, "compare-replicas-every", "7");
  EXPECT_EQ(options.session.compare_replicas_every, 7);
}

TEST(OptionsOfTheCInterface, SetWhatSavesLossesAndMuonDo) {
  troupe_options options;

  set(options, "gradients-in-parameter-dtype", "true");
  set(options, "nesterov", "false");
  set(options, "newton-schulz-steps", "6");
  set(options, "muon-scale", "match_rms_adamw");
  set(options, "loss-scaling", "dynamic");
  set(options, "loss-scale", "1024");
  set(options, "loss-scale-growth", "3");
  set(options, "loss-scale-interval", "7");
  set(options, "loss-scale-backoff", "0.25");
  set(options, "loss-scale-minimum", "16");
  set(options, "loss-scale-hysteresis", "8");
  set(options, "when-busy", "refuse");
  set(options, "load", "exchange");
  set(options, "local-checkpoints", "b");
  set(options, "replication-factor", "2");
  set(options, "replication-jump", "4");
  set(options, "local-keep", "5");
  set(options, "register-memory", "true");
  set(options, "stays", "true");

  const auto& training = options.session.training;
  EXPECT_TRUE(training.gradients_in_parameter_dtype);
  EXPECT_FALSE(training.optimizer.nesterov);
  EXPECT_EQ(training.optimizer.newton_schulz_steps, 6);
  EXPECT_EQ(training.optimizer.scale, core::MuonScale::match_rms_adamw);
  EXPECT_EQ(training.loss_scaling.kind, core::LossScale::dynamic);
  EXPECT_EQ(training.loss_scaling.scale, 1024);
  EXPECT_EQ(training.loss_scaling.growth, 3);
  EXPECT_EQ(training.loss_scaling.interval, 7);
  EXPECT_EQ(training.loss_scaling.backoff, 0.25);
  EXPECT_EQ(training.loss_scaling.minimum, 16);
  EXPECT_EQ(training.loss_scaling.hysteresis, 8);
  EXPECT_EQ(options.session.checkpoint.when_busy, core::WhenBusy::refuse);
  EXPECT_EQ(options.session.checkpoint.load.mode, core::LoadMode::exchange);
  EXPECT_EQ(options.world.local_checkpoint_directory, "b");
  EXPECT_EQ(options.session.local.factor, 2);
  EXPECT_EQ(options.session.local.jump, 4);
  EXPECT_EQ(options.session.local.keep, 5);
  EXPECT_TRUE(options.world.register_memory);
  set(options, "loss-scaling", "fixed");
  EXPECT_EQ(training.loss_scaling.kind, core::LossScale::fixed);
  set(options, "load", "read");
  EXPECT_EQ(options.session.checkpoint.load.mode, core::LoadMode::read);
}

TEST(OptionsOfTheCInterface, CutTheJobAlongTheAxisThatTheyName) {
  troupe_options options;

  set(options, "tensor-parallel", "2");
  set(options, "pipeline-parallel", "3");
  set(options, "context-parallel", "4");
  set(options, "expert-parallel", "5");

  EXPECT_EQ(options.session.training.tensor_parallel, 2);
  EXPECT_EQ(options.session.training.pipeline_parallel, 3);
  EXPECT_EQ(options.session.training.context_parallel, 4);
  EXPECT_EQ(options.session.training.expert_parallel, 5);
  EXPECT_FALSE(set_option(options, "tensor-parallel", "0"));
}

TEST(OptionsOfTheCInterface, AreCheckedWhenTheyAreSet) {
  troupe_options options;
  set(options, "device", "cuda:3");
  set(options, "collectives", "tcp");
  const std::vector<std::pair<std::string_view, std::string_view>> wrong{
      {"device", "gpu"},       {"device", "cuda:-1"},    {"device", ""},     {"collectives", "mpi"},
      {"collectives", ""},     {"strategy", "zero4"},    {"lanes", "-1"},    {"lanes", "two"},
      {"clip-norm", "nan"},    {"beta1", "1.5"},         {"overlap", "yes"}, {"checkpoints", ""},
      {"join-seconds", "inf"}, {"local-checkpoints", ""}};
  for (const auto& [name, value] : wrong) {
    const auto done = set_option(options, name, value);
    ASSERT_FALSE(done) << name << " " << value;
    EXPECT_EQ(done.error().code, core::Errc::invalid_argument);
    EXPECT_TRUE(done.error().message.starts_with(std::string(name) + ": ")) << done.error().message;
  }
  EXPECT_EQ(options.world.device, "cuda:3") << "as it was";
  EXPECT_EQ(options.world.collectives, "tcp");
}

TEST(OptionsOfTheCInterface, TakeAnOrderOfUnitsAndRefuseOtherLists) {
  troupe_options options;
  set(options, "forward-order", "2,0,10");
  set(options, "backward-order", "7");
  EXPECT_EQ(options.session.order.forward, (std::vector<core::UnitIndex>{{2}, {0}, {10}}));
  EXPECT_EQ(options.session.order.backward, (std::vector<core::UnitIndex>{{7}}));

  for (const char* value : {"", "1,", ",1", "1,,0", "1 0", "1,x", "-1", "1,0,"}) {
    const auto done = set_option(options, "forward-order", value);
    ASSERT_FALSE(done) << value;
    EXPECT_TRUE(done.error().message.starts_with("forward-order: ")) << done.error().message;
    EXPECT_EQ(options.session.order.forward, (std::vector<core::UnitIndex>{{2}, {0}, {10}})) << "as it was";
  }
}

}  // namespace
}  // namespace troupe::actors

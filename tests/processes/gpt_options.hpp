#pragma once

#include <gtest/gtest.h>

#include <string>

#include "apps/gpt/model/optimizer.hpp"
#include "apps/gpt/options/run_options.hpp"

namespace troupe::tests {

/// The same job as gpt_command(), as the trainer's options.
inline apps::gpt::TrainerOptions gpt_options(const std::string& optimizer = "adamw") {
  apps::gpt::TrainerOptions options;
  options.model = *apps::gpt::preset("tiny");
  options.microbatch = {2, options.model.context};
  options.schedule = {.peak = 3e-3, .floor = 3e-4, .warmup = core::Step{50}, .total = core::Step{20}};
  auto& training = options.session.training;
  training.lanes = 8;
  training.bucket_elements = 3000;
  training.clip_norm = 1;
  EXPECT_TRUE(apps::gpt::choose_optimizer(training, optimizer, {.beta2 = 0.95, .weight_decay = 0.1}));
  return options;
}

}  // namespace troupe::tests

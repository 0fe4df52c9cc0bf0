// What several programs call by one name is one option, wherever they take it: with the help, the bounds and
// the words of the table that the C interface has too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "actors/session/c/options.hpp"
#include "actors/session/option_table.hpp"
#include "apps/gpt/options/options.hpp"
#include "apps/troupe/commands.hpp"

namespace troupe::apps {
namespace {

/// Options that mean something else where they stand, and why.
const std::map<std::string, std::string> kOthers{
    {"gpt --optimizer", "it makes two groups of parameters for some optimizers"},
    {"gpt --loss-scale", "it takes words too"},
    {"gpt --lanes", "0 means nothing to its data"},
    {"gpt --checkpoints", "settings say only whether it is given"},
    {"gpt --local-checkpoints", "settings say only whether it is given"},
    {"troupe simulate --strategy", "it can be any"},
    {"troupe bench step --strategy", "it is a list"},
    {"troupe bench step --collectives", "there is no GPU"},
    {"troupe bench moe --collectives", "it measures groups, not sessions"},
    {"troupe bench pipeline --microbatches", "they belong to a schedule, not to lanes"},
    {"troupe bench kernels --device", "without a job nobody has a local number"},
    {"troupe checkpoint reshard --strategy", "it says how tensors are cut into files"},
    {"troupe checkpoint import --strategy", "it says how tensors are cut into files"},
    {"troupe checkpoint import --optimizer", "it says in what form the state was written"},
    {"troupe checkpoint export --optimizer", "it says in what form the state is written"},
    {"troupe checkpoint prune --keep-last", "it is the only thing asked for, and not 0"},
    {"troupe checkpoint prune --keep-every", "without 0 it is not given"},
};

class CommonOptions : public testing::Test {
 protected:
  void compare(const CLI::App& app, const std::string& name) {
    for (const auto& [known, help, value] : table_) {
      const auto* option = app.get_option_no_throw(fmt::format("--{}", known));
      const auto place = fmt::format("{} --{}", name, known);
      // A plan describes a part of a job: how many ranks and rounds each of its axes has.
      if (option == nullptr || name.starts_with("troupe plan ")) continue;
      if (kOthers.contains(place)) {
        EXPECT_NE(option->get_description(), help) << place << " is the common one: take it out of the list";
        others_ += 1;
        continue;
      }
      EXPECT_EQ(option->get_description(), help) << place;
      const auto form = value.choices.empty() ? value.type : value.type + ":" + value.choices;
      const bool is_flag = value.kind == core::OptionValue::Kind::flag;
      EXPECT_EQ(is_flag ? form : option->get_type_name(), form) << place;
      compared_ += 1;
    }
    for (const auto* below : app.get_subcommands([](const CLI::App*) { return true; }))
      compare(*below, name + " " + below->get_name());
  }

  troupe_options targets_;
  std::vector<core::CommonOption> table_ = actors::common_options(targets_.world, targets_.session);
  int compared_ = 0;
  std::size_t others_ = 0;
};

TEST_F(CommonOptions, AreTheSameInEveryProgram) {
  int exit_code = 0;
  CLI::App troupe, trainer;
  gpt::Options options;
  add_commands(troupe, exit_code);
  gpt::add_options(trainer, options);

  compare(troupe, "troupe");
  compare(trainer, "gpt");

  EXPECT_EQ(others_, kOthers.size());
  EXPECT_GE(compared_, 35);
}

TEST_F(CommonOptions, AreThoseOfTheCInterface) {
  std::string names;
  for (const auto& [name, help, value] : table_) {
    const bool is_flag = value.kind == core::OptionValue::Kind::flag;
    names += fmt::format("{}: {}{}\n", name, help, is_flag ? ": true or false" : "");
  }

  EXPECT_EQ(actors::option_names(), names);
}

/// A name of a table leads to its own target: what is set through one row is shown by no other.
TEST_F(CommonOptions, SetTheirOwnTargetsOnly) {
  const auto shown = [&] {
    std::vector<std::string> all;
    for (const auto& one : table_) all.push_back(one.value.shown ? one.value.shown() : "");
    return all;
  };
  for (std::size_t i = 0; i < table_.size(); ++i) {
    const auto before = shown();
    const auto& value = table_[i].value;
    if (!value.shown || value.type == "TEXT") continue;
    const auto other = before[i] == "7" ? "8" : "7";
    if (!value.set(other)) continue;
    auto after = shown();
    EXPECT_EQ(after[i], other) << table_[i].name;
    after[i] = before[i];
    EXPECT_EQ(after, before) << table_[i].name;
  }
}

}  // namespace
}  // namespace troupe::apps

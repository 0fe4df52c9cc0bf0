#include "apps/gpt/options/option_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace troupe::apps::gpt {
namespace {

using Kind = core::OptionValue::Kind;
using testing::HasSubstr;

class OptionTable : public testing::Test {
 protected:
  Options options_;
  std::vector<OptionRow> rows_ = option_table(options_);
};

TEST_F(OptionTable, IsTheCommandLine) {
  CLI::App app;
  add_options(app, options_);
  std::vector<std::string> names{"--help"}, found;
  for (const auto& row : rows_) names.push_back(row.name.substr(0, row.name.find(',')));
  for (const CLI::Option* option : app.get_options()) found.push_back(option->get_name());

  EXPECT_EQ(found, names);
  const std::string help = app.help();
  for (const auto& row : rows_) {
    EXPECT_THAT(help, HasSubstr(row.name));
    const auto* option = app.get_option(row.name.substr(0, row.name.find(',')));
    EXPECT_EQ(option->get_description(), row.help);
    const bool is_shown = row.value.kind == Kind::value && row.value.has_default;
    EXPECT_EQ(option->get_default_str(), is_shown ? row.value.shown() : "") << row.name;
  }
}

TEST_F(OptionTable, DefaultsAreValuesThatCanBeGiven) {
  for (const auto& row : rows_) {
    if (row.value.kind != Kind::value || !row.value.has_default) continue;
    const auto before = row.value.shown();
    if (before == "default") continue;

    EXPECT_TRUE(row.value.set(before)) << row.name;
    EXPECT_EQ(row.value.shown(), before) << row.name;
  }
}

TEST_F(OptionTable, BoundsAreThoseThatHelpShows) {
  int numbers = 0;
  for (const auto& row : rows_) {
    const auto dots = row.value.type.find("..");
    if (dots == std::string::npos) continue;
    const std::string least = row.value.type.substr(0, dots), most = row.value.type.substr(dots + 2);
    numbers += 1;

    EXPECT_TRUE(row.value.set(least)) << row.name;
    EXPECT_FALSE(row.value.set("-1")) << row.name;
    if (most.empty()) continue;
    EXPECT_TRUE(row.value.set(most)) << row.name;
    EXPECT_THAT(row.value.set("1e31").error().message, HasSubstr(least + " to " + most)) << row.name;
  }
  EXPECT_GT(numbers, 40);
}

TEST_F(OptionTable, ChoicesAreTakenAndOthersRefused) {
  for (const auto& row : rows_) {
    if (row.value.choices.empty()) continue;
    std::string rest = row.value.choices + "|";
    for (auto end = rest.find('|'); end != std::string::npos; end = rest.find('|')) {
      EXPECT_TRUE(row.value.set(rest.substr(0, end))) << row.name;
      rest.erase(0, end + 1);
    }
    EXPECT_THAT(row.value.set("none of these").error().message, HasSubstr("none of these")) << row.name;
  }
}

}  // namespace
}  // namespace troupe::apps::gpt

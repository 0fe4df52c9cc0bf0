#include "actors/world/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/actors/world/heard_log.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

Variables variables_of(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

struct Lines {
  std::vector<std::string> heard;

  std::unique_ptr<Log> log(LogOptions options = {}) {
    options.lines = [this](std::string_view line) { heard.emplace_back(line); };
    return Log::open(std::move(options)).value();
  }
};

TEST(LogLevels, AreInfoUnlessSomethingElseIsAskedFor) {
  EXPECT_EQ(parse_log_levels("").value(), LogLevels());
  EXPECT_EQ(LogLevels().of(Subsystem::transport), LogLevel::info);
}

TEST(LogLevels, OfSubsystemsPrecedeTheGeneralOneInAnyOrder) {
  for (const auto* text : {"error,transport=debug", "transport=debug,error"}) {
    const auto levels = parse_log_levels(text).value();

    EXPECT_EQ(levels.of(Subsystem::transport), LogLevel::debug) << text;
    EXPECT_EQ(levels.of(Subsystem::session), LogLevel::error) << text;
  }
}

TEST(LogLevels, OfEachSubsystemCanBeSet) {
  for (std::size_t i = 0; i < kSubsystems; ++i) {
    const auto subsystem = static_cast<Subsystem>(i);

    const auto levels = parse_log_levels(fmt::format("{}=off", name_of(subsystem)));

    ASSERT_TRUE(levels) << levels.error().message;
    EXPECT_EQ(levels->of(subsystem), LogLevel::off);
  }
}

struct WrongLevels {
  const char* text;
  const char* said;

  friend std::ostream& operator<<(std::ostream& out, const WrongLevels& of) { return out << of.text; }
};

class LogLevelsThatAreWrong : public ::testing::TestWithParam<WrongLevels> {};

TEST_P(LogLevelsThatAreWrong, AreRefusedWithWhatIsKnown) {
  const auto options = log_options(variables_of({{"TROUPE_LOG", GetParam().text}}));

  ASSERT_FALSE(options);
  EXPECT_EQ(options.error().code, core::Errc::invalid_argument);
  EXPECT_THAT(options.error().message, HasSubstr("TROUPE_LOG: "));
  EXPECT_THAT(options.error().message, HasSubstr(GetParam().said));
}

constexpr const char* kKnownLevels = "expected a level of trace, debug, info, warning, error, off, found ";
constexpr const char* kKnownSubsystems =
    "expected a subsystem of session, actors, transport, collectives, checkpoint, replica, device, launch, "
    "tools, found ";

INSTANTIATE_TEST_SUITE_P(
    Texts, LogLevelsThatAreWrong,
    ::testing::Values(WrongLevels{"loud", kKnownLevels}, WrongLevels{"INFO", kKnownLevels},
                      WrongLevels{"info,", kKnownLevels}, WrongLevels{",info", kKnownLevels},
                      WrongLevels{"info, transport=debug", kKnownSubsystems},
                      WrongLevels{"transport", kKnownLevels}, WrongLevels{"transport=", kKnownLevels},
                      WrongLevels{"transport=debug=info", kKnownLevels},
                      WrongLevels{"=debug", kKnownSubsystems}, WrongLevels{"network=debug", kKnownSubsystems},
                      WrongLevels{"3", kKnownLevels}));

TEST(LogOptions, RefuseOtherWordsThanTheirs) {
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"TROUPE_LOG_JSON", "yes"}, {"TROUPE_LOG_FILE_MIB", "-1"}, {"TROUPE_LOG_FILE_MIB", "ten"}}) {
    const auto options = log_options(variables_of({{name, value}}));

    ASSERT_FALSE(options) << name;
    EXPECT_THAT(options.error().message, HasSubstr(name));
  }
}

TEST(LogOptions, NeedAPlaceForAFile) {
  const auto options = log_options(variables_of({{"TROUPE_LOG_FILE_MIB", "1"}}));

  ASSERT_FALSE(options);
  EXPECT_THAT(options.error().message, HasSubstr("TROUPE_LOG_DIR"));
}

TEST(Log, SaysTimeLevelPlaceAndSentenceOnOneLine) {
  Lines lines;
  const auto log = lines.log({.rank = core::Rank{3}, .epoch = core::Epoch{2}});

  Logger(*log, Subsystem::transport).warning("rank {} is late", 7);

  ASSERT_EQ(lines.heard.size(), 1U);
  EXPECT_THAT(lines.heard[0],
              MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} warning "
                           "\\[rank 3 epoch 2 transport\\] rank 7 is late"));
}

TEST(Log, KeepsAnEventOnOneLineWhateverItQuotes) {
  Lines lines;
  const auto log = lines.log();

  Logger(*log, Subsystem::session).say(LogLevel::error, "first\nsecond\x1b[2J\tthird\r");

  ASSERT_EQ(lines.heard.size(), 1U);
  EXPECT_THAT(lines.heard[0], HasSubstr("error [session] first\\nsecond\ufffd[2J third\ufffd"));
}

TEST(Log, SaysJsonThatHasEveryPart) {
  Lines lines;
  const auto log = lines.log({.json = true, .rank = core::Rank{0}, .epoch = core::Epoch{5}});

  Logger(*log, Subsystem::checkpoint).say(LogLevel::info, "a \"quoted\"\nline \xff");

  ASSERT_EQ(lines.heard.size(), 1U);
  const auto event = nlohmann::json::parse(lines.heard[0]);
  EXPECT_EQ(event.at("level"), "info");
  EXPECT_EQ(event.at("subsystem"), "checkpoint");
  EXPECT_EQ(event.at("rank"), 0);
  EXPECT_EQ(event.at("epoch"), 5);
  EXPECT_EQ(event.at("message"), "a \"quoted\"\nline \ufffd");
  EXPECT_THAT(event.at("time").get<std::string>(), MatchesRegex("[0-9-]+T[0-9:]+\\.[0-9]{3}Z"));
}

TEST(Log, SaysNothingBelowTheLevelOfASubsystem) {
  Lines lines;
  LogOptions options;
  options.levels = parse_log_levels("warning,actors=trace,transport=off").value();
  const auto log = lines.log(std::move(options));

  for (const auto subsystem : {Subsystem::session, Subsystem::actors, Subsystem::transport})
    for (const auto level : {LogLevel::trace, LogLevel::info, LogLevel::warning, LogLevel::error})
      Logger(*log, subsystem).say(level, "said");

  EXPECT_EQ(lines.heard.size(), 2U + 4U);
}

/// Counts how often it is formatted.
struct Counted {
  int* formatted;
};

}  // namespace
}  // namespace troupe::actors

template <>
struct fmt::formatter<troupe::actors::Counted> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  auto format(const troupe::actors::Counted& counted, fmt::format_context& context) const {
    *counted.formatted += 1;
    return context.out();
  }
};

namespace troupe::actors {
namespace {

TEST(Log, FormatsNothingThatItDoesNotSay) {
  const HeardLog log(LogLevel::warning);
  int formatted = 0;

  log.of(Subsystem::session).debug("{}", Counted{&formatted});
  log.of(Subsystem::session).info("{}", Counted{&formatted});
  Logger().error("{}", Counted{&formatted});

  EXPECT_EQ(formatted, 0);
}

TEST(Log, AlsoWritesAFileWhichItRotates) {
  const tests::ScratchFolder folder;
  auto options = log_options(variables_of({{"TROUPE_LOG_FILE_MIB", "1"}, {"TROUPE_LOG_DIR", folder.path()}}),
                             core::Rank{4}, core::Epoch{1})
                     .value();
  Lines lines;
  const std::string sentence(1000, 'x');
  const auto log = lines.log(std::move(options));

  for (int i = 0; i < 4000; ++i) Logger(*log, Subsystem::session).say(LogLevel::info, sentence);

  for (const auto* name : {"/rank_4.log", "/rank_4.1.log", "/rank_4.2.log"}) {
    std::ifstream file(folder.path() + name);
    std::string line;
    ASSERT_TRUE(std::getline(file, line)) << name;
    EXPECT_THAT(line, HasSubstr("info [rank 4 epoch 1 session] xxx"));
    file.seekg(0, std::ios::end);
    EXPECT_LE(file.tellg(), 1 << 20) << name;
  }
  EXPECT_FALSE(std::ifstream(folder.path() + "/rank_4.3.log"));
  EXPECT_EQ(lines.heard.size(), 4000U);
}

TEST(Log, SaysWhyThereCanBeNoFile) {
  LogOptions options;
  options.file = "/proc/nothing/rank_0.log";
  options.file_bytes = 1 << 20;

  const auto log = Log::open(std::move(options));

  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, core::Errc::io);
  EXPECT_THAT(log.error().message, HasSubstr("/proc/nothing/rank_0.log"));
}

}  // namespace
}  // namespace troupe::actors

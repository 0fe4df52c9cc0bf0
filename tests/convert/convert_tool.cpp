#include "tests/convert/convert_tool.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "apps/troupe/convert/convert_command.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;

Output run_convert(const std::vector<std::string>& arguments) {
  Output run;
  CLI::App app("Test", "troupe");
  app.require_subcommand(1);
  add_convert_command(app, run.exit_code);
  // CLI11 takes words from the end.
  std::vector<std::string> words(arguments.rbegin(), arguments.rend());
  words.emplace_back("convert");
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    run.exit_code = app.exit(error) == 0 ? 0 : 2;
  }
  std::fflush(stdout);
  std::fflush(stderr);
  run.out = testing::internal::GetCapturedStdout();
  run.err = testing::internal::GetCapturedStderr();
  return run;
}

ScratchDirectory::ScratchDirectory() {
  auto name = (fs::temp_directory_path() / "troupe_convert_XXXXXX").string();
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  path_ = name;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code error;
  fs::remove_all(path_, error);
}

std::string golden_model(const std::string& name) {
  return std::string(TROUPE_GOLDEN_DIRECTORY) + "/models/" + name;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace troupe::apps

#include "tests/convert/convert_tool.hpp"

#include <fstream>
#include <iterator>

#include "apps/troupe/convert/convert_command.hpp"

namespace troupe::apps {

Output run_convert(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"convert"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return tests::run_subcommand(add_convert_command, words);
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

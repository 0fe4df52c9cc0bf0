#include "tests/core/models/example_configs.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/support/folder.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

Json::json_pointer pointer(std::string key) {
  for (auto& c : key) {
    if (c == '.') c = '/';
  }
  return Json::json_pointer("/" + key);
}

}  // namespace

std::string published(const std::string& model) {
  std::ifstream file(tests_folder() / "golden/models" / (model + ".json"));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::string> more_published() {
  std::map<std::string, std::string> models;
  const auto all = Json::parse(published("more"));
  for (const auto& [name, config] : all.items()) models[name] = config.dump();
  return models;
}

std::string with(const std::string& config, const std::string& key, const std::string& json) {
  auto parsed = Json::parse(config);
  parsed[pointer(key)] = Json::parse(json);
  return parsed.dump();
}

std::string without(const std::string& config, const std::string& key) {
  auto parsed = Json::parse(config);
  const auto at = pointer(key);
  parsed.at(at.parent_pointer()).erase(at.back());
  return parsed.dump();
}

ModelConfig convert(const std::string& text, const ConvertOptions& options) {
  auto converted = from_huggingface(text, options);
  EXPECT_TRUE(converted) << (converted ? "" : converted.error().message);
  return converted ? converted->config : ModelConfig{};
}

}  // namespace troupe::core

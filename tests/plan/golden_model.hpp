#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "apps/gpt/pretrained/huggingface_config.hpp"
#include "tests/support/folder.hpp"

namespace troupe::apps {

inline std::string golden_model(const std::string& name) {
  return (tests_folder() / "golden" / "models" / (name + ".json")).string();
}

/// The configuration as the reference trainer reads it.
inline gpt::ModelConfig trainers_config(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return gpt::read_huggingface_config(text.str()).value().model;
}

}  // namespace troupe::apps

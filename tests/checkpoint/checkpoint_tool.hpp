#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/subcommand.hpp"

namespace troupe::apps {

using tests::Output;
using tests::ScratchFolder;

/// `troupe checkpoint ARGUMENTS`.
Output run_checkpoint(const std::vector<std::string>& arguments);

/// A path below tests/golden.
std::string golden(const std::string& name);
inline std::string golden_checkpoint() {
  return golden("checkpoint/step_00000007");
}

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);
void flip_bit(const std::string& path, std::size_t byte);
/// Names in a directory, sorted; without those in `but`.
std::vector<std::string> names_in(const std::string& path);

core::Manifest manifest_at(const std::string& checkpoint);
/// The bytes of every tensor of a checkpoint of Troupe, gathered shard by shard from its files, which are
/// read without the code under test.
std::map<std::string, std::string> contents_of(const std::string& checkpoint);

/// A tensor of a small checkpoint that a test makes up.
struct MadeTensor {
  std::string key;
  core::DType dtype = core::DType::f32;
  core::Shape shape;
  std::string bytes;
};
/// Writes one checkpoint of one rank, without the code under test. Returns its path.
std::string make_checkpoint(const std::string& root, std::int64_t step,
                            const std::vector<MadeTensor>& tensors, const core::Value& common = {});

std::string floats(const std::vector<float>& values);

}  // namespace troupe::apps

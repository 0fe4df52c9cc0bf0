#include "tests/checkpoint/checkpoint_tool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

#include "apps/troupe/checkpoint/checkpoint_command.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/hash.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;

Output run_checkpoint(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"checkpoint"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return tests::run_subcommand(add_checkpoint_command, words);
}

std::string golden(const std::string& name) {
  return std::string(TROUPE_GOLDEN_DIRECTORY) + "/" + name;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
}

void flip_bit(const std::string& path, std::size_t byte) {
  auto bytes = read_file(path);
  bytes.at(byte) = static_cast<char>(bytes.at(byte) ^ 4);
  write_file(path, bytes);
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

core::Manifest manifest_at(const std::string& checkpoint) {
  return core::parse_manifest(read_file(checkpoint + "/" + core::kManifestName)).value();
}

std::map<std::string, std::string> contents_of(const std::string& checkpoint) {
  const auto manifest = manifest_at(checkpoint);
  std::map<std::string, std::string> contents;
  for (const auto& tensor : manifest.tensors) {
    const auto width = core::size_of(tensor.dtype);
    const auto whole = core::Box::whole(tensor.shape);
    auto& bytes = contents[tensor.key];
    bytes.resize(static_cast<std::size_t>(whole.elements()) * width);
    for (const auto& shard : tensor.shards) {
      const auto file = read_file(checkpoint + "/" + manifest.files[shard.file].name);
      for (const auto& run : core::copy_runs(shard.box, whole, shard.box))
        std::memcpy(&bytes[static_cast<std::size_t>(run.to) * width],
                    &file[shard.begin + static_cast<std::size_t>(run.from) * width],
                    static_cast<std::size_t>(run.elements) * width);
    }
  }
  return contents;
}

std::string make_checkpoint(const std::string& root, std::int64_t step,
                            const std::vector<MadeTensor>& tensors, const core::Value& common) {
  core::SaveStructure structure;
  core::WrittenShards written;
  for (const auto& tensor : tensors) {
    structure.pieces.push_back(
        {static_cast<std::uint32_t>(structure.tensors.size()), core::Box::whole(tensor.shape)});
    structure.tensors.push_back({tensor.key, tensor.dtype, tensor.shape});
    written.hashes.push_back(core::hash64(tensor.bytes));
  }
  const core::SaveStructure* ranks[] = {&structure};
  const auto plan = core::plan_save(ranks).value();
  const auto path = root + "/" + core::checkpoint_name(core::StepCount{step});
  fs::create_directories(path);
  for (const auto& file : core::plan_files(structure, plan.assigned[0], core::Rank{0})) {
    auto bytes = file.header;
    for (const auto& shard : file.shards) bytes += tensors[structure.pieces[shard.piece].tensor].bytes;
    write_file(path + "/" + file.name, bytes);
  }
  const core::WrittenShards all[] = {written};
  auto manifest = core::manifest_of(ranks, plan, all);
  manifest.step = core::StepCount{step};
  manifest.save = "00000000000000aa";
  manifest.common = common;
  write_file(path + "/" + core::kManifestName, core::to_text(manifest));
  return path;
}

std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace troupe::apps

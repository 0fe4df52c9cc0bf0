#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "apps/files/file_writer.hpp"
#include "apps/files/meter.hpp"
#include "apps/files/model_companions.hpp"
#include "apps/files/staged_directory.hpp"
#include "apps/troupe/checkpoint/export.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"
#include "core/interop/huggingface.hpp"
#include "core/models/block_scales.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

struct Part {
  const core::ManifestTensor* tensor = nullptr;
  core::DType dtype{};
  core::Box box;

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(box.elements()) * core::size_of(dtype); }
};

/// Wide elements first: then each tensor begins at a multiple of its element.
void sort_for_file(std::vector<Part>& parts) {
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return core::size_of(a.dtype) > core::size_of(b.dtype);
  });
}

Result<void> write_file(const Source& source, StagedDirectory& out, const std::string& name,
                        const std::vector<Part>& parts, bool is_sharded, Meter& meter) {
  std::vector<core::SafetensorsEntry> entries;
  std::vector<core::Shape> offsets;
  for (const auto& part : parts) {
    if (part.tensor->key == core::kMetadataName)
      return core::fail(Errc::invalid_argument, "no safetensors file can hold a tensor '{}'; use --rename",
                        part.tensor->key);
    entries.push_back({part.tensor->key, part.dtype, part.box.extent, 0, 0});
    offsets.push_back(part.box.offset);
  }
  const std::map<std::string, std::string> whole{{"format", "pt"}};
  const auto header =
      core::safetensors_header(entries, is_sharded ? core::sharding_metadata(entries, offsets) : whole);
  TRY(core::check_header_size(header));
  FileWriter file(TRY(out.file(name)));
  TRY(file.append(std::as_bytes(std::span(header))));
  for (const auto& part : parts) {
    TRY(stream_box(source, *part.tensor, part.dtype, part.box, kStreamBytes,
                   [&](std::span<const std::byte> bytes) {
                     meter.add(bytes.size());
                     return file.append(bytes);
                   }));
  }
  return file.finish();
}

/// Readers know one part of a tensor in a file, so the second part in one of ours goes to another of theirs.
std::vector<std::vector<Part>> sharded_files(const core::Manifest& manifest) {
  std::map<std::pair<std::uint32_t, int>, std::vector<Part>> files;
  std::vector<Part> empty;
  for (const auto& tensor : manifest.tensors) {
    std::map<std::uint32_t, int> parts;
    for (const auto& shard : tensor.shards)
      files[{shard.file, parts[shard.file]++}].push_back({&tensor, tensor.dtype, shard.box});
    if (tensor.shards.empty()) empty.push_back({&tensor, tensor.dtype, core::Box::whole(tensor.shape)});
  }
  if (files.empty()) files[{0, 0}];
  auto& first = files.begin()->second;
  first.insert(first.end(), empty.begin(), empty.end());
  std::vector<std::vector<Part>> result;
  for (auto& [place, parts] : files) result.push_back(std::move(parts));
  return result;
}

/// config.json of a model whose tensors become these.
Result<std::string> config_for(const std::vector<Part>& parts, const std::string& config) {
  std::set<core::DType> dtypes;
  for (const auto& part : parts) {
    if (core::is_floating(part.dtype)) dtypes.insert(part.dtype);
  }
  return dtypes.size() == 1 && !config.empty() ? with_dtype(config, *dtypes.begin())
                                               : Result<std::string>(config);
}

/// Other elements would be multiplied by the same factors.
Result<void> check_has_no_factors(const core::Manifest& manifest) {
  for (const auto& tensor : manifest.tensors) {
    const auto factors = tensor.key + std::string(core::kFactorsSuffix);
    if (tensor.dtype != core::DType::f8_e4m3 || manifest.find(factors) == nullptr) continue;
    return core::fail(
        Errc::invalid_argument,
        "tensor '{}' is in fp8 and has its factors in '{}', so --dtype would change its values; "
        "leave --dtype out, or `troupe convert weights IN OUT --to huggingface`",
        tensor.key, factors);
  }
  return {};
}

Exported result_of(const Source& source, std::vector<std::string> files, const Meter& meter) {
  return {meter.bytes(), source.manifest.tensors.size(), std::move(files), meter.seconds()};
}

}  // namespace

Result<Exported> export_sharded_safetensors(const Source& source, const std::string& path) {
  auto out = TRY(StagedDirectory::create(path));
  Meter meter("writing", source.manifest.tensor_bytes());
  std::vector<std::string> names;
  for (auto& parts : sharded_files(source.manifest)) {
    sort_for_file(parts);
    names.push_back(core::huggingface_shard_file_name(static_cast<int>(names.size()), 1, 1));
    TRY(write_file(source, out, names.back(), parts, true, meter));
  }
  TRY(out.finish());
  return result_of(source, std::move(names), meter);
}

Result<Exported> export_huggingface(const Source& source, const std::string& path,
                                    const HuggingFaceOptions& options) {
  std::vector<Part> all;
  std::vector<std::uint64_t> sizes;
  for (const auto& tensor : source.manifest.tensors) {
    const bool converts = options.dtype && core::is_floating(tensor.dtype);
    all.push_back({&tensor, converts ? *options.dtype : tensor.dtype, core::Box::whole(tensor.shape)});
    sizes.push_back(all.back().bytes());
  }
  if (options.dtype) TRY(check_has_no_factors(source.manifest));
  const auto config = TRY(config_for(all, options.model.config));
  auto out = TRY(StagedDirectory::create(path));
  core::HuggingFaceIndex index;
  index.total_bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  Meter meter("writing", index.total_bytes);
  const auto files = core::split_into_files(sizes, options.max_file_bytes);
  std::vector<std::string> names;
  for (const auto& members : files) {
    std::vector<Part> parts;
    for (const auto member : members) parts.push_back(all[member]);
    sort_for_file(parts);
    names.push_back(core::huggingface_file_name(names.size() + 1, files.size()));
    for (const auto& part : parts) index.weight_map[part.tensor->key] = names.back();
    TRY(write_file(source, out, names.back(), parts, false, meter));
  }
  const auto text = TRY(core::encode_huggingface_index(index));
  TRY(out.write(core::kHuggingFaceIndexName, std::as_bytes(std::span(text))));
  names.emplace_back(core::kHuggingFaceIndexName);
  if (!config.empty()) {
    TRY(out.write("config.json", std::as_bytes(std::span(config))));
    names.emplace_back("config.json");
  }
  if (!options.model.directory.empty()) {
    for (auto& name : TRY(copy_companions(options.model.directory, out))) names.push_back(std::move(name));
  }
  TRY(out.finish());
  return result_of(source, std::move(names), meter);
}

}  // namespace troupe::apps

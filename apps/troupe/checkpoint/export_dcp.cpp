#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "apps/troupe/checkpoint/dcp_source.hpp"
#include "apps/troupe/checkpoint/export.hpp"
#include "apps/troupe/checkpoint/file_writer.hpp"
#include "apps/troupe/checkpoint/meter.hpp"
#include "apps/troupe/checkpoint/optimizer_names.hpp"
#include "apps/troupe/checkpoint/staged_directory.hpp"
#include "core/errors.hpp"
#include "core/interop/crc32.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/plain_data.hpp"
#include "core/interop/torch_archive.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

/// A shard and whose it is.
struct Part {
  std::size_t tensor = 0;
  std::size_t shard = 0;
};

std::vector<std::vector<Part>> parts_by_file(const core::Manifest& manifest) {
  std::vector<std::vector<Part>> files(manifest.files.size());
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const auto& shards = manifest.tensors[i].shards;
    for (std::size_t j = 0; j < shards.size(); ++j) files[shards[j].file].push_back({i, j});
  }
  std::erase_if(files, [](const auto& parts) { return parts.empty(); });
  if (files.empty()) files.emplace_back();
  return files;
}

class DcpWriter {
 public:
  DcpWriter(const Source& source, StagedDirectory& out, DcpNames names)
      : source_(source),
        out_(out),
        meter_("writing", source.manifest.tensor_bytes()),
        names_(names),
        layout_(torch_layout_of(source.manifest)) {
    for (const auto& tensor : source.manifest.tensors)
      metadata_.tensors.push_back({tensor.key, tensor.dtype, tensor.shape, {}, {}});
    if (names != DcpNames::torch) return;
    auto found = torch_names(source.manifest, layout_);
    for (std::size_t i = 0; i < found.size(); ++i) {
      metadata_.tensors[i].key = std::move(found[i].key);
      metadata_.tensors[i].path = std::move(found[i].path);
    }
  }

  Result<Exported> write() {
    if (source_.manifest.find(kDcpValuesKey) != nullptr)
      return core::fail(Errc::invalid_argument,
                        "a tensor has the name '{}', under which the values are kept; use --rename",
                        kDcpValuesKey);
    const auto files = parts_by_file(source_.manifest);
    for (std::size_t i = 0; i < files.size(); ++i) TRY(write_file(files[i], static_cast<int>(i)));
    const auto encoded = TRY(core::encode_dcp_metadata(metadata_));
    // Nothing may be written that could not be read.
    TRY(core::parse_dcp_metadata(encoded));
    TRY(out_.write(core::kDcpMetadataName, encoded));
    TRY(out_.finish());
    Exported result{meter_.bytes(), metadata_.tensors.size(), metadata_.files, meter_.seconds()};
    result.files.emplace_back(core::kDcpMetadataName);
    return result;
  }

 private:
  Result<void> write_file(const std::vector<Part>& parts, int number) {
    metadata_.files.push_back(core::dcp_file_name(number, 0));
    FileWriter file(TRY(out_.file(metadata_.files.back())));
    std::uint64_t at = 0;
    if (number == 0 && source_.form != SourceForm::safetensors) {
      TRY(write_item(file, {kDcpValuesKey}, dcp_values_of(source_.manifest), at));
      if (names_ == DcpNames::torch) TRY(write_what_torch_looks_for(file, at));
    }
    for (const auto& part : parts) {
      const auto& tensor = source_.manifest.tensors[part.tensor];
      const auto& box = tensor.shards[part.shard].box;
      const auto writer = TRY(core::TorchTensorWriter::create(tensor.dtype, box.extent));
      TRY(file.append(writer.head()));
      core::Crc32 crc;
      TRY(stream_box(source_, tensor, tensor.dtype, box, kStreamBytes, [&](std::span<const std::byte> bytes) {
        crc.update(bytes);
        meter_.add(bytes.size());
        return file.append(bytes);
      }));
      TRY(file.append(writer.tail(crc.value())));
      metadata_.tensors[part.tensor].chunks.push_back(
          {box, {static_cast<std::uint32_t>(number), at, writer.total_bytes()}});
      at += writer.total_bytes();
    }
    return file.finish();
  }

  /// `at` is where the file ends.
  Result<void> write_item(FileWriter& file, const core::KeyPath& path, const core::Value& value,
                          std::uint64_t& at) {
    const auto bytes = TRY(core::encode_torch_value(value));
    TRY(file.append(bytes));
    metadata_.items.push_back({dotted(path), {0, at, bytes.size()}, path});
    at += bytes.size();
    return {};
  }

  Result<void> write_what_torch_looks_for(FileWriter& file, std::uint64_t& at) {
    const auto& common = source_.manifest.common;
    const auto* steps = common.find("optimizer_steps");
    if (steps != nullptr && steps->as_int()) {
      for (auto& name : torch_step_names(source_.manifest, layout_))
        TRY(write_scalar(file, std::move(name), static_cast<float>(*steps->as_int()), at));
    }
    const auto* trainer = common.find("trainer");
    if (trainer == nullptr) return {};
    for (const auto& value : flattened(*trainer)) {
      const auto key = dotted(value.path);
      const auto is_same = [&](const auto& known) { return known.key == key; };
      const bool is_there = std::any_of(metadata_.tensors.begin(), metadata_.tensors.end(), is_same) ||
                            std::any_of(metadata_.items.begin(), metadata_.items.end(), is_same);
      if (!is_there) TRY(write_item(file, value.path, value.value, at));
    }
    return {};
  }

  Result<void> write_scalar(FileWriter& file, TorchName name, float value, std::uint64_t& at) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    const auto writer = TRY(core::TorchTensorWriter::create(core::DType::f32, {}));
    core::Crc32 crc;
    crc.update(bytes);
    TRY(file.append(writer.head()));
    TRY(file.append(bytes));
    TRY(file.append(writer.tail(crc.value())));
    metadata_.tensors.push_back({std::move(name.key),
                                 core::DType::f32,
                                 {},
                                 {{core::Box{}, {0, at, writer.total_bytes()}}},
                                 std::move(name.path)});
    at += writer.total_bytes();
    return {};
  }

  static std::string dotted(const core::KeyPath& path) {
    std::string name;
    for (const auto& key : path) {
      if (!name.empty()) name += '.';
      const auto* text = std::get_if<std::string>(&key);
      name += text != nullptr ? *text : fmt::format("{}", std::get<std::int64_t>(key));
    }
    return name;
  }

  const Source& source_;
  StagedDirectory& out_;
  Meter meter_;
  DcpNames names_;
  TorchLayout layout_;
  core::DcpMetadata metadata_;
};

}  // namespace

Result<Exported> export_dcp(const Source& source, const std::string& path, DcpNames names) {
  auto out = TRY(StagedDirectory::create(path));
  return DcpWriter(source, out, names).write();
}

}  // namespace troupe::apps

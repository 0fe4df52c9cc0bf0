#include <fmt/format.h>

#include <span>
#include <utility>

#include "apps/troupe/checkpoint/dcp_source.hpp"
#include "apps/troupe/checkpoint/export.hpp"
#include "apps/troupe/checkpoint/file_writer.hpp"
#include "apps/troupe/checkpoint/meter.hpp"
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
  DcpWriter(const Source& source, StagedDirectory& out)
      : source_(source), out_(out), meter_("writing", source.manifest.tensor_bytes()) {
    for (const auto& tensor : source.manifest.tensors)
      metadata_.tensors.push_back({tensor.key, tensor.dtype, tensor.shape, {}, {}});
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
      const auto bytes = TRY(core::encode_torch_value(values()));
      TRY(file.append(bytes));
      metadata_.items.push_back({kDcpValuesKey, {0, 0, bytes.size()}, {}});
      at = bytes.size();
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

  core::Value values() const { return dcp_values_of(source_.manifest); }

  const Source& source_;
  StagedDirectory& out_;
  Meter meter_;
  core::DcpMetadata metadata_;
};

}  // namespace

Result<Exported> export_dcp(const Source& source, const std::string& path) {
  auto out = TRY(StagedDirectory::create(path));
  return DcpWriter(source, out).write();
}

}  // namespace troupe::apps

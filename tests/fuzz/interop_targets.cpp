#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/huggingface.hpp"
#include "core/interop/pickle.hpp"
#include "core/interop/plain_data.hpp"
#include "core/interop/torch_archive.hpp"
#include "core/interop/torch_shards.hpp"
#include "core/interop/zip_archive.hpp"
#include "core/models/model_config.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

std::span<const std::byte> input(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

/// A checkpoint without its order of files and without what was skipped.
struct Contents {
  std::map<std::string, std::pair<core::DType, core::Shape>> tensors;
  std::map<std::string, std::vector<std::pair<core::Box, std::string>>> chunks;
  std::map<std::string, std::string> items;

  friend bool operator==(const Contents&, const Contents&) = default;
};

Contents contents_of(const core::DcpMetadata& metadata) {
  const auto place = [&](const core::DcpPlace& at) {
    return metadata.files.at(at.file) + " " + std::to_string(at.offset) + " " + std::to_string(at.bytes);
  };
  Contents contents;
  for (const core::DcpTensor& tensor : metadata.tensors) {
    contents.tensors[tensor.key] = {tensor.dtype, tensor.shape};
    for (const core::DcpChunk& chunk : tensor.chunks) {
      contents.chunks[tensor.key].emplace_back(chunk.box, place(chunk.place));
    }
  }
  for (const core::DcpItem& item : metadata.items) contents.items[item.key] = place(item.place);
  return contents;
}

void rewrite_tensor(std::span<const std::byte> archive, const core::TorchTensor& tensor) {
  CHECK(tensor.offset <= archive.size() && tensor.stored_bytes <= archive.size() - tensor.offset,
        "a tensor lies in its archive");
  if (!tensor.strides.empty()) return;
  const auto elements = archive.subspan(tensor.offset, tensor.bytes);
  const auto writer = core::TorchTensorWriter::create(tensor.dtype, tensor.shape);
  CHECK(writer.has_value() && writer->data_bytes() == elements.size(),
        "a tensor that was read can be written");
  Bytes bytes = writer->head();
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  const Bytes tail = writer->tail(core::crc32(elements));
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  const auto again = core::parse_torch_tensor(bytes);
  CHECK(again.has_value() && again->dtype == tensor.dtype && again->shape == tensor.shape,
        "a tensor is the same after writing and reading");
  CHECK(std::ranges::equal(std::span(bytes).subspan(again->offset, again->bytes), elements),
        "elements are the same after writing and reading");
}

}  // namespace

int fuzz_pickle(const std::uint8_t* data, std::size_t size) {
  const auto document = core::PickleDocument::parse(input(data, size));
  if (!document) return 0;
  const Bytes encoded = core::encode(*document);
  const auto again = core::PickleDocument::parse(encoded);
  CHECK(again.has_value(), "a pickle that was written can be read");
  CHECK(core::encode(*again) == encoded, "a pickle is the same after writing and reading");
  return 0;
}

int fuzz_zip(const std::uint8_t* data, std::size_t size) {
  const auto archive = core::ZipArchive::open(input(data, size));
  if (!archive) return 0;
  core::ZipWriter zip{std::string(archive->folder())};
  for (const core::ZipEntry& entry : archive->entries()) {
    core::disregard(archive->check_crc(entry), "either is right, a crash is not");
    zip.add(entry.name, archive->data(entry));
  }
  zip.finish();
  const Bytes bytes = zip.take();
  const auto again = core::ZipArchive::open(bytes);
  CHECK(again.has_value() && again->entries().size() == archive->entries().size(),
        "an archive that was written can be read");
  for (const core::ZipEntry& entry : archive->entries()) {
    const auto found = again->read(entry.name);
    CHECK(found.has_value() && std::ranges::equal(*found, archive->data(entry)),
          "an entry is the same after writing and reading");
  }
  return 0;
}

int fuzz_torch_archive(const std::uint8_t* data, std::size_t size) {
  const auto bytes = input(data, size);
  if (const auto tensor = core::parse_torch_tensor(bytes)) rewrite_tensor(bytes, *tensor);
  if (const auto value = core::parse_torch_value(bytes)) {
    const auto encoded = core::encode_torch_value(*value);
    CHECK(encoded.has_value(), "a value that was read can be written");
    const auto again = core::parse_torch_value(*encoded);
    CHECK(again.has_value() && *again == *value, "a value is the same after writing and reading");
  }
  return 0;
}

int fuzz_torch_shards(const std::uint8_t* data, std::size_t size) {
  const auto bytes = input(data, size);
  const auto archive = core::TorchArchive::open(bytes);
  if (!archive) return 0;
  const auto parts = core::torch_model_parts(*archive, 0);
  if (!parts) return 0;
  core::disregard(core::torch_optimizer_parts(*archive, *parts, 0), "either is right, a crash is not");
  // The one rank of a job, and each rank of one of two.
  for (const std::size_t ranks : {1, 2}) {
    const auto merged = core::merge_torch_parts(std::vector(ranks, *parts));
    if (!merged) continue;
    for (const auto& tensor : *merged) {
      std::vector<core::Box> boxes;
      for (const auto& shard : tensor.shards) {
        boxes.push_back(shard.box);
        CHECK(shard.offset <= size && shard.stored_bytes <= size - shard.offset,
              "a shard lies in its archive");
        CHECK(shard.bytes == static_cast<std::uint64_t>(shard.box.elements()) * core::size_of(tensor.dtype),
              "a shard has the bytes of its box");
      }
      CHECK(core::check_exact_cover(tensor.shape, boxes).has_value(), "the shards cover their tensor");
    }
  }
  return 0;
}

int fuzz_dcp_metadata(const std::uint8_t* data, std::size_t size) {
  const auto metadata = core::parse_dcp_metadata(input(data, size));
  if (!metadata) return 0;
  const auto encoded = core::encode_dcp_metadata(*metadata);
  CHECK(encoded.has_value(), "metadata that were read can be written");
  const auto again = core::parse_dcp_metadata(*encoded);
  CHECK(again.has_value() && contents_of(*again) == contents_of(*metadata),
        "metadata are the same after writing and reading");
  core::disregard(core::check_dcp_files(*metadata, [](const std::string& name) { return name.size(); }),
                  "either is right, a crash is not");
  return 0;
}

int fuzz_huggingface_index(const std::uint8_t* data, std::size_t size) {
  const auto index = core::parse_huggingface_index({reinterpret_cast<const char*>(data), size});
  if (!index) return 0;
  const auto encoded = core::encode_huggingface_index(*index);
  CHECK(encoded.has_value(), "an index that was read can be written");
  const auto again = core::parse_huggingface_index(*encoded);
  CHECK(again.has_value() && *again == *index, "an index is the same after writing and reading");
  return 0;
}

int fuzz_model_config(const std::uint8_t* data, std::size_t size) {
  const auto converted = core::from_huggingface({reinterpret_cast<const char*>(data), size}, {});
  if (!converted) return 0;
  const auto& model = converted->config;
  const auto read = core::parse_model_config(core::to_text(model));
  CHECK(read.has_value() && *read == model, "a model's configuration is the same after writing and reading");
  // Not every configuration can be said in its own words again, such as dense layers at odd places.
  const auto back = core::to_huggingface(model);
  CHECK(!back || core::from_huggingface(*back, {}).has_value(), "a config.json that was written can be read");
  return 0;
}

}  // namespace troupe::fuzz

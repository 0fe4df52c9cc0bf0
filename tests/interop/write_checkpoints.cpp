#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "core/checkpoint/safetensors.hpp"
#include "core/interop/crc32.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/huggingface.hpp"
#include "core/interop/plain_data.hpp"
#include "core/interop/torch_archive.hpp"
#include "core/interop/torch_names.hpp"

namespace troupe::core {
namespace {

using Bytes = std::vector<std::byte>;

/// A tensor whose element i is i, cut into boxes that lie in several files.
struct Sample {
  std::string key;
  DType dtype;
  Shape shape;
  std::vector<Box> boxes;
};

void put_number(Bytes& bytes, DType dtype, std::int64_t value) {
  const auto put = [&](auto number) {
    const auto raw = std::bit_cast<std::array<std::byte, sizeof number>>(number);
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  };
  const auto real = static_cast<float>(value);
  switch (dtype) {
    case DType::f64:
      return put(static_cast<double>(value));
    case DType::f32:
      return put(real);
    case DType::f16:
      return put(float_to_f16(real));
    case DType::bf16:
      return put(float_to_bf16(real));
    case DType::f8_e4m3:
      return put(float_to_f8_e4m3(real));
    case DType::f8_e5m2:
      return put(float_to_f8_e5m2(real));
    case DType::boolean:
      return put(static_cast<std::uint8_t>(value != 0));
    default:
      // Integers are little-endian, so their beginning is the narrower number.
      for (std::size_t i = 0; i < size_of(dtype); ++i)
        bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
}

Bytes elements_of_box(const Sample& sample, const Box& box) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(box.elements()));
  for (const CopyRun& run : copy_runs(Box::whole(sample.shape), box, box)) {
    std::iota(numbers.begin() + run.to, numbers.begin() + run.to + run.elements, run.from);
  }
  Bytes bytes;
  for (const std::int64_t number : numbers) put_number(bytes, sample.dtype, number);
  return bytes;
}

std::vector<Sample> samples() {
  std::vector<Sample> result;
  for (int code = 0; code <= static_cast<int>(DType::boolean); ++code) {
    const auto dtype = static_cast<DType>(code);
    result.push_back({fmt::format("dtypes.{}", torch_name(dtype)), dtype, {5}, {{{0}, {2}}, {{2}, {3}}}});
  }
  result.push_back(
      {"grid", DType::f32, {3, 4}, {{{0, 0}, {1, 2}}, {{0, 2}, {1, 2}}, {{1, 0}, {2, 2}}, {{1, 2}, {2, 2}}}});
  result.push_back({"scalar", DType::bf16, {}, {{{}, {}}}});
  result.push_back(
      {"axes", DType::i64, {2, 1, 3, 1}, {{{0, 0, 0, 0}, {2, 1, 1, 1}}, {{0, 0, 1, 0}, {2, 1, 2, 1}}}});
  return result;
}

void write_file(const std::filesystem::path& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

DcpPlace append(Bytes& file, std::uint32_t index, const Bytes& bytes) {
  const DcpPlace place{index, file.size(), bytes.size()};
  file.insert(file.end(), bytes.begin(), bytes.end());
  return place;
}

Bytes archive_of(const Sample& sample, const Box& box) {
  const auto writer = TorchTensorWriter::create(sample.dtype, box.extent).value();
  const Bytes elements = elements_of_box(sample, box);
  Bytes bytes = writer.head();
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  const Bytes tail = writer.tail(crc32(elements));
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return bytes;
}

/// The native format: box i of every tensor lies in the file of rank i.
void write_native(const std::filesystem::path& folder) {
  DcpMetadata metadata;
  std::vector<Bytes> files(4);
  for (int rank = 0; rank < 4; ++rank) metadata.files.push_back(dcp_file_name(rank, 0));
  const Value options = Value::Map{{"betas", Value::tuple({0.9, 0.999})},
                                   {"names", Value::List{"a", "\xc3\xa9"}},
                                   {"bytes", Value::Bytes{std::byte{0}, std::byte{0xff}}},
                                   {"none", nullptr},
                                   {7, std::int64_t{-5'000'000'000}}};
  const auto add = [&](const std::string& key, const Value& value, KeyPath path) {
    metadata.items.push_back({key, append(files[0], 0, encode_torch_value(value).value()), std::move(path)});
  };
  add("options", options, {});
  add("nested.0.step", 12, {"nested", 0, "step"});
  for (const Sample& sample : samples()) {
    DcpTensor tensor{sample.key, sample.dtype, sample.shape, {}, {}};
    for (std::size_t i = 0; i < sample.boxes.size(); ++i) {
      const Box& box = sample.boxes[i];
      tensor.chunks.push_back(
          {box, append(files[i], static_cast<std::uint32_t>(i), archive_of(sample, box))});
    }
    metadata.tensors.push_back(std::move(tensor));
  }
  std::filesystem::create_directories(folder);
  for (std::size_t i = 0; i < files.size(); ++i) write_file(folder / metadata.files[i], files[i]);
  write_file(folder / kDcpMetadataName, encode_dcp_metadata(metadata).value());
}

/// Safetensors as PyTorch's Hugging Face reader wants them: box i of every tensor lies in the shard of rank
/// i.
void write_safetensors(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<SafetensorsEntry> entries;
    std::vector<Shape> offsets;
    Bytes data;
    for (const Sample& sample : samples()) {
      const auto part = static_cast<std::size_t>(rank);
      if (part >= sample.boxes.size()) continue;
      entries.push_back({sample.key, sample.dtype, sample.boxes[part].extent, 0, 0});
      offsets.push_back(sample.boxes[part].offset);
      const Bytes elements = elements_of_box(sample, sample.boxes[part]);
      data.insert(data.end(), elements.begin(), elements.end());
    }
    const std::string header = safetensors_header(entries, sharding_metadata(entries, offsets));
    const auto head = std::as_bytes(std::span(header));
    data.insert(data.begin(), head.begin(), head.end());
    write_file(folder / huggingface_shard_file_name(rank, 1, 1), data);
  }
}

/// A model as transformers reads it: whole tensors in files of a limited size, with an index.
void write_model(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const std::vector<Sample> all = samples();
  std::vector<std::uint64_t> sizes;
  for (const Sample& sample : all) {
    sizes.push_back(static_cast<std::uint64_t>(elements_of(sample.shape)) * size_of(sample.dtype));
  }
  const auto files = split_into_files(sizes, 64);
  HuggingFaceIndex index{std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}), {}};
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = huggingface_file_name(i + 1, files.size());
    std::vector<SafetensorsEntry> entries;
    Bytes data;
    for (const std::size_t tensor : files[i]) {
      entries.push_back({all[tensor].key, all[tensor].dtype, all[tensor].shape, 0, 0});
      const Bytes elements = elements_of_box(all[tensor], Box::whole(all[tensor].shape));
      data.insert(data.end(), elements.begin(), elements.end());
      index.weight_map[all[tensor].key] = name;
    }
    const std::string header = safetensors_header(entries, {{"format", "pt"}});
    const auto head = std::as_bytes(std::span(header));
    data.insert(data.begin(), head.begin(), head.end());
    write_file(folder / name, data);
  }
  const std::string text = encode_huggingface_index(index).value();
  const auto bytes = std::as_bytes(std::span(text));
  write_file(folder / kHuggingFaceIndexName, Bytes(bytes.begin(), bytes.end()));
}

}  // namespace
}  // namespace troupe::core

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: {} FOLDER\n", argv[0]);
    return 1;
  }
  const std::filesystem::path folder = argv[1];
  troupe::core::write_native(folder / "native");
  troupe::core::write_safetensors(folder / "safetensors");
  troupe::core::write_model(folder / "model");
}

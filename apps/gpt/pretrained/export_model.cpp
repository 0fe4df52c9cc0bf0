#include "apps/gpt/pretrained/export_model.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/files/file_writer.hpp"
#include "apps/files/model_companions.hpp"
#include "apps/files/staged_directory.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "core/interop/huggingface.hpp"

namespace troupe::apps::gpt {

namespace {

using core::Result;

constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

Result<void> write_text(StagedDirectory& out, std::string_view name, const std::string& text) {
  return out.write(name, std::as_bytes(std::span(text)));
}

class TensorWriter {
 public:
  TensorWriter(const ReadParameter& read, core::DType dtype) : read_(read), dtype_(dtype) {}

  Result<void> write_file(std::unique_ptr<actors::WritableFile> opened,
                          const std::vector<ParameterSpec>& specs, std::span<const std::size_t> members) {
    std::vector<core::SafetensorsEntry> entries;
    for (const std::size_t member : members) {
      core::Shape shape;
      for (const std::size_t extent : specs[member].shape) shape.push_back(static_cast<std::int64_t>(extent));
      entries.push_back({specs[member].name, dtype_, std::move(shape), 0, 0});
    }
    const auto header = core::safetensors_header(entries, {{"format", "pt"}});
    TRY(core::check_header_size(header));
    FileWriter file(std::move(opened));
    TRY(file.append(std::as_bytes(std::span(header))));
    for (const std::size_t member : members)
      TRY(write_tensor(file, member, static_cast<std::int64_t>(specs[member].elements())));
    return file.finish();
  }

 private:
  Result<void> write_tensor(FileWriter& file, std::size_t parameter, std::int64_t elements) {
    for (std::int64_t start = 0; start < elements; start += kPieceElements) {
      const core::ElementRange range{start, std::min(start + kPieceElements, elements)};
      const auto count = static_cast<std::size_t>(range.size());
      values_.resize(count);
      bytes_.resize(count * core::size_of(dtype_));
      TRY(read_(parameter, range, values_));
      core::convert_elements(core::DType::f32, std::as_bytes(std::span(values_)).data(), dtype_,
                             bytes_.data(), count);
      TRY(file.append(bytes_));
    }
    return {};
  }

  const ReadParameter& read_;
  core::DType dtype_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

Result<void> write_tensors(const std::vector<ParameterSpec>& specs, const ReadParameter& read,
                           const ExportOptions& options, StagedDirectory& out) {
  std::vector<std::uint64_t> sizes;
  core::HuggingFaceIndex index;
  for (const auto& spec : specs) {
    sizes.push_back(spec.elements() * core::size_of(options.dtype));
    index.total_bytes += sizes.back();
  }
  const auto files = core::split_into_files(sizes, options.max_file_bytes);
  TensorWriter writer(read, options.dtype);
  if (files.size() == 1)
    return writer.write_file(TRY(out.file(core::kHuggingFaceFileName)), specs, files.front());
  for (std::size_t part = 0; part < files.size(); ++part) {
    const auto name = core::huggingface_file_name(part + 1, files.size());
    TRY(writer.write_file(TRY(out.file(name)), specs, files[part]));
    for (const std::size_t member : files[part]) index.weight_map[specs[member].name] = name;
  }
  return write_text(out, core::kHuggingFaceIndexName, TRY(core::encode_huggingface_index(index)));
}

Result<std::string> config_text(const ModelConfig& config, const ExportOptions& options) {
  if (options.origin != nullptr) return with_dtype(options.origin->config_text(), options.dtype);
  return write_huggingface_config(config, options.dtype);
}

}  // namespace

Result<void> check_export(const ModelConfig& config, const ExportOptions& options) {
  if (options.directory.empty()) return {};
  TRY(config_text(config, options));
  const auto place = StagedDirectory::check_place(options.directory);
  if (place) return {};
  return core::fail(place.error().code, "cannot export to {}: {}", options.directory, place.error().message);
}

ModelFiles model_files(const ModelConfig& config, const ExportOptions& options) {
  // Longer than any published config.json; checkpoints limit what they keep.
  constexpr std::size_t kLongest = 16'384;
  auto text = config_text(config, options);
  if (!text || text->size() > kLongest) return {};
  ModelFiles files{std::move(*text), {}};
  std::error_code error;
  if (options.origin != nullptr)
    files.directory = std::filesystem::absolute(options.origin->directory(), error).string();
  return files;
}

Result<void> export_model(const ModelConfig& config, const ReadParameter& read,
                          const ExportOptions& options) {
  const auto text = TRY(config_text(config, options));
  auto out = TRY(StagedDirectory::create(options.directory));
  TRY(write_tensors(parameters(config), read, options, out));
  TRY(write_text(out, "config.json", text));
  if (options.origin != nullptr) TRY(copy_companions(options.origin->directory(), out));
  return out.finish();
}

}  // namespace troupe::apps::gpt

#include "apps/troupe/convert/weight_writer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <numeric>
#include <set>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/reader.hpp"
#include "apps/files/file_writer.hpp"
#include "apps/files/scaled_matrix.hpp"
#include "core/checkpoint/json_cursor.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/sealed_text.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/values/json_text.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;
using Output = core::WeightPlan::Output;

constexpr const char* kRecordSuffix = ".done";
constexpr const char* kUnfinishedSuffix = ".part";
constexpr std::size_t kReadAhead = 4;

/// One file that is written, and what is known when it is.
struct OutputFile {
  std::string name;
  std::vector<const Output*> outputs;
  std::vector<core::SafetensorsEntry> entries;
  std::string header;
  std::vector<std::uint64_t> hashes;  ///< of the tensors, when it is written

  std::uint64_t bytes() const { return entries.empty() ? header.size() : entries.back().end; }
};

/// Wide elements first: then each tensor begins at a multiple of its element.
void sort_for_file(OutputFile& file) {
  std::vector<std::size_t> order(file.entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return core::size_of(file.entries[a].dtype) > core::size_of(file.entries[b].dtype);
  });
  const auto outputs = file.outputs;
  const auto entries = file.entries;
  for (std::size_t i = 0; i < order.size(); ++i) {
    file.outputs[i] = outputs[order[i]];
    file.entries[i] = entries[order[i]];
  }
}

class Writer {
 public:
  Writer(const ModelSource& source, const WeightJob& job, actors::Storage& storage, std::string directory)
      : source_(source), job_(job), storage_(storage), directory_(std::move(directory)) {}

  Result<WeightsWritten> write() {
    TRY(plan_files());
    const auto made = storage_.make_directory(directory_);
    if (!made && made.error().code != Errc::already_exists) return tl::unexpected(made.error());
    // Nothing that an interrupted run left may load while files change below it.
    std::set<std::string> shards;
    for (const auto& file : files_) shards.insert({file.name, file.name + kRecordSuffix});
    TRY(remove_except(shards));
    for (auto& file : files_) {
      if (TRY(is_written(file))) {
        written_.kept_files += 1;
      } else {
        TRY(write_file(file));
      }
      written_.bytes += file.bytes() - file.header.size();
      written_.tensors += file.outputs.size();
    }
    written_.files = files_.size();
    TRY(write_texts());
    std::set<std::string> wanted{job_.manifest_name};
    for (const auto& file : files_) wanted.insert(file.name);
    for (const auto& [name, text] : job_.texts) wanted.insert(name);
    TRY(remove_except(wanted));
    TRY(storage_.sync_directory(directory_));
    return written_;
  }

 private:
  std::string path(std::string_view name) const { return actors::path_in(directory_, name); }

  const core::ManifestTensor& tensor_of(std::size_t input) const { return *inputs_[input]; }

  Result<core::DType> dtype_of(const Output& output) const {
    const auto& first = tensor_of(output.pieces.front().input);
    for (const auto& piece : output.pieces) {
      const auto& other = tensor_of(piece.input);
      if (source_.dtype_of(other) == source_.dtype_of(first)) continue;
      return core::fail(
          Errc::mismatch, "'{}' has dtype {}, '{}' of {}; they become one tensor, so use --dtype", other.key,
          core::name_of(source_.dtype_of(other)), first.key, core::name_of(source_.dtype_of(first)));
    }
    return source_.dtype_of(first);
  }

  Result<core::DType> target_dtype(const Output& output) const {
    const auto& name = output.tensor.name;
    if (output.pieces.empty()) return padding_dtype(name);
    const bool is_bias = name.ends_with("expert_bias") || name.ends_with("e_score_correction_bias");
    if (job_.dtype && !is_bias && core::is_floating(tensor_of(output.pieces.front().input).dtype))
      return *job_.dtype;
    return dtype_of(output);
  }

  /// A part of a tensor that is nothing but padding is like the other parts, which have its name.
  Result<core::DType> padding_dtype(const std::string& name) const {
    for (const auto& other : job_.plan.outputs) {
      if (other.tensor.name == name && !other.pieces.empty()) return target_dtype(other);
    }
    return core::fail(Errc::invalid_argument, "tensor '{}' has no source", name);
  }

  Result<void> plan_files() {
    for (const auto& input : job_.plan.inputs) {
      const auto key = key_of(source_.form, input);
      inputs_.push_back(source_.source.manifest.find(key));
      if (inputs_.back() == nullptr || inputs_.back()->shape != input.shape)
        return core::fail(Errc::mismatch, "the source has no tensor '{}' of shape {}", key,
                          core::to_string(input.shape));
    }
    std::map<std::string, std::size_t> places;
    for (const auto& output : job_.plan.outputs) {
      const auto [place, is_new] = places.try_emplace(output.tensor.file, files_.size());
      if (is_new) files_.push_back({output.tensor.file, {}, {}, {}, {}});
      files_[place->second].outputs.push_back(&output);
    }
    for (auto& file : files_) {
      for (const auto* output : file.outputs) {
        const auto dtype = TRY(target_dtype(*output));
        file.entries.push_back({output->tensor.name, dtype, output->tensor.shape, 0, 0});
      }
      sort_for_file(file);
      file.header = core::safetensors_header(file.entries, {{"format", "pt"}});
      TRY(core::check_header_size(file.header));
    }
    return {};
  }

  std::string record_of(const OutputFile& file) const {
    std::string text = "{\n\"tensors\":[";
    for (std::size_t i = 0; i < file.hashes.size(); ++i)
      text += fmt::format("{}\"{}\"", i == 0 ? "" : ",", core::hex64(file.hashes[i]));
    return core::seal(text + "],\n");
  }

  /// Whether an earlier run finished this file: its bytes are what that run noted, and what this one would
  /// write of its source, which may be another one by now.
  Result<bool> is_written(OutputFile& file) {
    const auto record = storage_.read(path(file.name + kRecordSuffix), 0, std::size_t{64} << 20);
    const auto size = storage_.size(path(file.name));
    if (!record || !size || *size != file.bytes()) return false;
    const std::string_view text(reinterpret_cast<const char*>(record->data()), record->size());
    const auto content = core::unseal(text, "the record");
    if (!content) return false;
    core::JsonCursor cursor(*content);
    cursor.expect("{\n\"tensors\":[");
    std::vector<std::uint64_t> hashes;
    for (std::size_t i = 0; i < file.entries.size(); ++i) {
      if (i > 0) cursor.expect(",");
      hashes.push_back(cursor.hash());
    }
    if (!cursor.is_good()) return false;
    const auto header = TRY(storage_.read(path(file.name), 0, file.header.size()));
    if (core::hash64(header) != core::hash64(file.header)) return false;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (TRY(hash_of_bytes(file, file.entries[i])) != hashes[i]) return false;
    }
    const auto pass_over = [](std::span<const std::byte>) -> Result<void> { return {}; };
    if (TRY(make_tensors(file, pass_over)) != hashes) return false;
    file.hashes = std::move(hashes);
    return true;
  }

  Result<std::uint64_t> hash_of_bytes(const OutputFile& file, const core::SafetensorsEntry& entry) {
    core::HashStream hash;
    std::vector<std::byte> block(std::min<std::uint64_t>(kStreamBytes, entry.bytes()));
    for (auto at = entry.begin; at < entry.end;) {
      const auto wanted = std::min<std::uint64_t>(block.size(), entry.end - at);
      const auto came = TRY(storage_.read_into(path(file.name), at, std::span(block).first(wanted)));
      if (came == 0) return core::fail(Errc::corrupt, "{} became shorter", file.name);
      hash.add(std::span(block).first(came));
      at += came;
    }
    return hash.value();
  }

  Result<void> write_file(OutputFile& file) {
    const auto unfinished = path(file.name + kUnfinishedSuffix);
    FileWriter out(TRY(storage_.create(unfinished)));
    TRY(out.append(std::as_bytes(std::span(file.header))));
    const auto append = [&](std::span<const std::byte> block) { return out.append(block); };
    file.hashes = TRY(make_tensors(file, append));
    TRY(out.finish());
    TRY(storage_.rename(unfinished, path(file.name)));
    TRY(storage_.sync_directory(directory_));
    return write_text(file.name + kRecordSuffix, record_of(file));
  }

  /// Rows of one output.
  struct Part {
    std::size_t output = 0;
    core::Box box;
  };

  std::vector<Part> parts_of(const OutputFile& file) const {
    std::vector<Part> parts;
    for (std::size_t i = 0; i < file.entries.size(); ++i) {
      const auto& entry = file.entries[i];
      const auto rows = entry.shape.empty() ? 1 : entry.shape[0];
      const auto row_bytes = static_cast<std::uint64_t>(core::elements_of(entry.shape)) *
                             core::size_of(entry.dtype) /
                             static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1));
      const auto step = static_cast<std::int64_t>(
          std::max<std::uint64_t>(1, kStreamBytes / std::max<std::uint64_t>(1, row_bytes)));
      for (std::int64_t row = 0; row < rows; row += step) {
        auto box = core::Box::whole(entry.shape);
        if (!entry.shape.empty()) {
          box.offset[0] = row;
          box.extent[0] = std::min(step, rows - row);
        }
        parts.push_back({i, std::move(box)});
      }
    }
    return parts;
  }

  /// All tensors of a file, row block after row block, to the sink; a few blocks are read ahead, each on a
  /// thread of its own, for a disk that gives more when it is asked for more at a time. Returns their hashes.
  Result<std::vector<std::uint64_t>> make_tensors(const OutputFile& file, const ByteSink& sink) const {
    struct Block {
      std::vector<std::byte> memory;
      std::future<Result<void>> filled;  // ends before what it uses
    };
    const auto parts = parts_of(file);
    std::array<Block, kReadAhead> blocks;
    const auto read = [&](std::size_t i) {
      const auto& part = parts[i];
      const auto dtype = file.entries[part.output].dtype;
      auto& block = blocks[i % kReadAhead];
      block.memory.resize(static_cast<std::size_t>(part.box.elements()) * core::size_of(dtype));
      block.filled = std::async(std::launch::async, [this, &file, &part, &block, dtype] {
        return fill(block.memory, *file.outputs[part.output], part.box, dtype);
      });
    };
    std::vector<core::HashStream> hashes(file.entries.size());
    for (std::size_t i = 0; i < std::min(parts.size(), kReadAhead); ++i) read(i);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto& block = blocks[i % kReadAhead];
      TRY(block.filled.get());
      hashes[parts[i].output].add(block.memory);
      TRY(sink(block.memory));
      if (i + kReadAhead < parts.size()) read(i + kReadAhead);
    }
    std::vector<std::uint64_t> values;
    for (const auto& hash : hashes) values.push_back(hash.value());
    return values;
  }

  /// What the pieces have of `part`, and zeros where none has any. Pieces do not overlap.
  Result<void> fill(std::span<std::byte> block, const Output& output, const core::Box& part,
                    core::DType dtype) const {
    const auto width = core::size_of(dtype);
    struct Detour {
      core::Box region;
      std::vector<std::byte> memory;
      const core::ManifestTensor* scaled = nullptr;  ///< read in f32, to be multiplied
      core::Box from = {};                           ///< of it
    };
    std::vector<Detour> detours;
    detours.reserve(output.pieces.size());
    std::vector<core::LoadTarget> targets;
    std::vector<std::span<std::byte>> places;
    std::int64_t padding = part.elements();
    for (const auto& piece : output.pieces) {
      if (const auto region = core::intersection(part, piece.target())) padding -= region->elements();
    }
    if (padding > 0) std::fill(block.begin(), block.end(), std::byte{0});
    for (const auto& piece : output.pieces) {
      const auto region = core::intersection(part, piece.target());
      if (!region) continue;
      auto from = *region;
      for (std::size_t axis = 0; axis < from.offset.size(); ++axis)
        from.offset[axis] += piece.from.offset[axis] - piece.to[axis];
      const auto& tensor = tensor_of(piece.input);
      const auto runs = core::copy_runs(*region, part, *region);
      const bool is_scaled = source_.is_scaled(tensor);
      const auto read_as = is_scaled ? core::DType::f32 : dtype;
      const auto bytes = static_cast<std::size_t>(region->elements()) * core::size_of(read_as);
      if (runs.size() == 1 && !is_scaled) {
        places.push_back(block.subspan(static_cast<std::size_t>(runs[0].to) * width, bytes));
      } else {
        detours.push_back({*region, std::vector<std::byte>(bytes), is_scaled ? &tensor : nullptr, from});
        places.emplace_back(detours.back().memory);
      }
      targets.push_back({tensor.key, read_as, tensor.shape, std::move(from), false});
    }
    actors::ReadOptions options;
    options.verify = false;
    TRY(actors::read_tensors(*source_.source.storage, "", source_.source.manifest, targets, places, options));
    for (auto& detour : detours) {
      if (detour.scaled != nullptr)
        detour.memory = TRY(unscaled(*detour.scaled, detour.from, std::move(detour.memory), dtype));
      for (const auto& run : core::copy_runs(detour.region, part, detour.region))
        std::memcpy(block.data() + static_cast<std::size_t>(run.to) * width,
                    detour.memory.data() + static_cast<std::size_t>(run.from) * width,
                    static_cast<std::size_t>(run.elements) * width);
    }
    return {};
  }

  /// A part of a matrix in fp8, whose values are in `memory` in f32, times its factors, in `dtype`.
  Result<std::vector<std::byte>> unscaled(const core::ManifestTensor& tensor, const core::Box& part,
                                          std::vector<std::byte> memory, core::DType dtype) const {
    const std::span values(reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float));
    TRY(multiply_by_factors_of(source_.source, *source_.blocks, tensor, part, values));
    std::vector<std::byte> converted(values.size() * core::size_of(dtype));
    core::convert_elements(core::DType::f32, memory.data(), dtype, converted.data(), values.size());
    return converted;
  }

  Result<void> write_text(const std::string& name, const std::string& text) {
    const auto unfinished = path(name + kUnfinishedSuffix);
    auto out = TRY(storage_.create(unfinished));
    TRY(out->append(std::as_bytes(std::span(text))));
    TRY(out->sync());
    TRY(out->close());
    return storage_.rename(unfinished, path(name));
  }

  core::Manifest manifest() const {
    core::Manifest manifest;
    manifest.common = job_.common;
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const auto& file = files_[i];
      manifest.files.push_back({file.name, file.bytes(), file.header.size(), core::hash64(file.header)});
      all = core::hash64(file.header, all);
      for (std::size_t k = 0; k < file.entries.size(); ++k) {
        const auto& entry = file.entries[k];
        core::ManifestTensor tensor{
            key_of(job_.form, {file.name, entry.name, {}}), entry.dtype, entry.shape, {}};
        if (entry.bytes() > 0)
          tensor.shards.push_back({core::Box::whole(entry.shape), static_cast<std::uint32_t>(i), entry.begin,
                                   entry.end, file.hashes[k]});
        all = core::hash64(core::hex64(file.hashes[k]), all);
        manifest.tensors.push_back(std::move(tensor));
      }
    }
    std::sort(manifest.tensors.begin(), manifest.tensors.end(),
              [](const auto& a, const auto& b) { return a.key < b.key; });
    manifest.save = core::hex64(all);
    return manifest;
  }

  Result<void> write_texts() {
    for (const auto& [name, text] : job_.texts) TRY(write_text(name, text));
    return write_text(job_.manifest_name, core::to_text(manifest()));
  }

  Result<void> remove_except(const std::set<std::string>& wanted) {
    for (const auto& name : TRY(storage_.list(directory_))) {
      if (!wanted.contains(name)) TRY(actors::remove_tree(storage_, path(name)));
    }
    return {};
  }

  const ModelSource& source_;
  const WeightJob& job_;
  actors::Storage& storage_;
  std::string directory_;
  std::vector<const core::ManifestTensor*> inputs_;
  std::vector<OutputFile> files_;
  WeightsWritten written_;
};

}  // namespace

Result<WeightsWritten> write_weights(const ModelSource& source, const WeightJob& job,
                                     actors::Storage& storage, const std::string& name) {
  const auto names = TRY(storage.list(""));
  if (std::find(names.begin(), names.end(), name) != names.end())
    return core::fail(Errc::already_exists, "{} is already there and stays as it is; give another name",
                      name);
  const auto partial = name + ".partial";
  const auto written = TRY(Writer(source, job, storage, partial).write());
  TRY(storage.rename(partial, name));
  TRY(storage.sync_directory(""));
  return written;
}

}  // namespace troupe::apps

#include "apps/files/nested_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/files/text.hpp"
#include "core/errors.hpp"
#include "core/interop/lfs_pointer.hpp"

namespace troupe::apps {

using core::Errc;
using core::Result;
using core::Value;

namespace {

/// What values may take whatever the size of the files: a million small ones.
constexpr std::uint64_t kValueBytes = std::uint64_t{48} << 20;
constexpr std::uint64_t kValueBytesPerByte = 4;
constexpr std::size_t kReasonColumns = 300;
/// Added to the number of a file: that of its strided elements, until there are numbers for such.
constexpr std::uint32_t kStridedFile = std::uint32_t{1} << 31;
/// A small file can say that one value is repeated very often.
constexpr std::uint64_t kRepeatedBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kRepeatedBytesPerByte = 16;

/// Containers within each other, without the innermost empty one.
std::size_t levels_of(const Value& value) {
  std::size_t levels = 0;
  const auto look = [&](const Value& inner) { levels = std::max(levels, 1 + levels_of(inner)); };
  if (const auto* map = value.as_map()) {
    for (const auto& entry : map->entries()) look(entry.value);
  }
  const auto* items = value.as_list() != nullptr ? value.as_list() : value.as_tuple();
  if (items != nullptr) std::for_each(items->begin(), items->end(), look);
  return levels;
}

}  // namespace

bool ValueTree::put(std::span<const core::Key> path, Value& value) {
  const auto [place, is_new] = places_.try_emplace(path.front(), entries_.size());
  if (is_new) {
    entries_.push_back({path.front(), {}, {}});
    if (path.size() > 1) entries_.back().inner = std::make_unique<ValueTree>();
  }
  auto& entry = entries_[place->second];
  if (path.size() > 1) return entry.inner && entry.inner->put(path.subspan(1), value);
  if (!is_new) return false;
  entry.value = std::move(value);
  return true;
}

Value::Map ValueTree::take() {
  std::vector<Value::Entry> entries;
  entries.reserve(entries_.size());
  for (auto& [key, value, inner] : entries_)
    entries.push_back({std::move(key), inner ? Value(inner->take()) : std::move(value)});
  return Value::Map::from_entries(std::move(entries)).value();
}

Result<NestedState> NestedState::open(SourceForm form, const std::string& path, const std::string& directory,
                                      actors::Links links) {
  auto storage = TRY(actors::PosixStorage::open(directory, links));
  auto* real = storage.get();
  auto strided = std::make_unique<StridedFiles>(std::move(storage));
  auto* apart = strided.get();
  Source source{form, path, std::move(strided), {}, false, {}};
  source.torch.emplace();
  return NestedState(std::move(source), real, apart);
}

Result<std::uint32_t> NestedState::add_file(const std::string& name) {
  files_.push_back(TRY(open_file(name)));
  const auto bytes = files_.back().bytes().size();
  file_bytes_ += bytes;
  source_.manifest.files.push_back({name, bytes, 0, 0});
  return static_cast<std::uint32_t>(files_.size() - 1);
}

Result<posix::MappedFile> NestedState::open_file(const std::string& name) const {
  auto file = TRY(posix::MappedFile::open(TRY(storage_->open_file(name)), name));
  const auto bytes = file.bytes();
  TRY(core::check_is_no_pointer(bytes.first(std::min(bytes.size(), core::kPointerBytes)), name));
  return file;
}

Result<bool> NestedState::has_file(const std::string& name) const {
  const auto size = storage_->size(name);
  if (size) return true;
  if (size.error().code == Errc::not_found) return false;
  return tl::unexpected(size.error());
}

Result<std::uint64_t> NestedState::size_of(const std::string& name) const {
  return storage_->size(name);
}

core::ManifestShard NestedState::shard(std::uint32_t file, std::span<const std::byte> stored,
                                       core::Shape strides, std::size_t width, core::Box box) {
  const auto bytes = static_cast<std::uint64_t>(box.elements()) * width;
  if (strides.empty()) {
    const auto begin = static_cast<std::uint64_t>(stored.data() - files_[file].bytes().data());
    return {std::move(box), file, begin, begin + bytes, 0};
  }
  auto& name = apart_[file];
  if (name.empty()) name = source_.manifest.files[file].name + " (strided)";
  const auto begin = strided_->append(name, {stored, width, box.extent, std::move(strides)});
  // Numbered when all real files are there.
  return {std::move(box), kStridedFile + file, begin, begin + bytes, 0};
}

bool NestedState::may_repeat(std::uint64_t bytes, std::uint64_t stored) {
  if (bytes <= stored) return true;
  repeated_ += bytes - stored;
  return repeated_ <= kRepeatedBytes + kRepeatedBytesPerByte * file_bytes_;
}

void NestedState::add_tensor(core::ManifestTensor tensor, core::KeyPath path, std::string carried) {
  std::sort(tensor.shards.begin(), tensor.shards.end(),
            [](const auto& a, const auto& b) { return a.box < b.box; });
  if (path.empty()) path.emplace_back(tensor.key);
  if (!carried.empty() && carried != kCarriedValue)
    note(fmt::format("carried as bytes: '{}', as Troupe has no {}", tensor.key, carried));
  source_.torch->tensors.push_back({tensor.key, std::move(path), {}, {}, std::move(carried)});
  source_.manifest.tensors.push_back(std::move(tensor));
}

void NestedState::add_unread(std::string key, core::KeyPath path, std::uint32_t file,
                             std::span<const std::byte> bytes, std::string reason) {
  note(fmt::format("carried unread: '{}': {}", key, shortened(std::move(reason), kReasonColumns)));
  const core::Shape shape{static_cast<std::int64_t>(bytes.size())};
  core::ManifestTensor tensor{std::move(key), core::DType::u8, shape, {}};
  tensor.shards.push_back(shard(file, bytes, {}, 1, core::Box::whole(shape)));
  add_tensor(std::move(tensor), std::move(path), kCarriedValue);
}

void NestedState::allow_values(std::uint64_t bytes) {
  if (budget_.bytes == core::ValueBudget{}.bytes) budget_.bytes = kValueBytes;
  budget_.bytes += kValueBytesPerByte * bytes;
}

void NestedState::add_value(const std::string& key, core::KeyPath path, Value value) {
  const auto levels = levels_of(value);
  if (levels + path.size() + 2 > core::kMaxValueDepth)
    return leave_out(key, fmt::format("it has more than {} levels", core::kMaxValueDepth));
  const bool is_whole = value.as_map() != nullptr && !value.as_map()->empty();
  if (path.empty() || !values_.put(path, value)) {
    path = {core::Key(key)};
    if (!values_.put(path, value)) return leave_out(key, "another value has its name");
  }
  if (is_whole) source_.torch->whole.push_back(std::move(path));
}

void NestedState::leave_out(std::string key, std::string reason) {
  source_.left_out.push_back({std::move(key), shortened(std::move(reason), kReasonColumns)});
}

Result<Source> NestedState::finish() && {
  auto& manifest = source_.manifest;
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (const auto& [file, name] : apart_) {
    numbers[kStridedFile + file] = static_cast<std::uint32_t>(manifest.files.size());
    manifest.files.push_back({name, strided_->size_of(name), 0, 0});
  }
  for (auto& tensor : manifest.tensors) {
    for (auto& shard : tensor.shards) {
      if (const auto found = numbers.find(shard.file); found != numbers.end()) shard.file = found->second;
    }
  }
  if (!numbers.empty()) strided_->keep(std::move(files_));
  auto& tensors = manifest.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const auto& a, const auto& b) { return a.key == b.key; });
  if (twice != tensors.end()) return core::fail(Errc::corrupt, "tensor '{}' is there twice", twice->key);
  if (!source_.has_values) manifest.common = values_.take();
  return std::move(source_);
}

}  // namespace troupe::apps

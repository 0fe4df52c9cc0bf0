#include "actors/planes/replica/copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "actors/planes/checkpoint/directory.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

constexpr std::string_view kSavePrefix = "step_";
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

template <class Integer>
bool read_number(std::string_view digits, int base, Integer& number) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  return error == std::errc{} && end == digits.data() + digits.size();
}

std::optional<core::CopyName> save_of(std::string_view directory) {
  const auto dash = directory.rfind('-');
  if (!directory.starts_with(kSavePrefix) || dash == std::string_view::npos) return std::nullopt;
  core::CopyName name;
  const bool good =
      read_number(directory.substr(kSavePrefix.size(), dash - kSavePrefix.size()), 10, name.step.value) &&
      read_number(directory.substr(dash + 1), 16, name.save);
  // Only the exact spelling that we write.
  return good && directory_of(name) == directory ? std::optional(name) : std::nullopt;
}

std::optional<core::Rank> owner_of(const core::CopyName& name, std::string_view directory) {
  core::Rank owner;
  if (!directory.starts_with(core::kCopyPrefix)) return std::nullopt;
  const bool good =
      read_number(directory.substr(core::kCopyPrefix.size()), 10, owner.value) && owner.value >= 0;
  const bool spelled = good && path_of(name, owner) == path_in(directory_of(name), directory);
  return spelled ? std::optional(owner) : std::nullopt;
}

Result<void> give_name(Storage& storage, const core::CopyManifest& manifest, bool sync) {
  const auto directory = directory_of(manifest.name);
  const auto unfinished = unfinished_path_of(manifest.name, manifest.owner);
  const auto text = core::to_text(manifest);
  if (text.size() > core::kMaxCopyManifestBytes) {
    return core::fail(Errc::invalid_argument,
                      "the manifest of rank {}'s copy has {} bytes, and readers take at most {}: it "
                      "describes too many parts of tensors",
                      manifest.owner.value, text.size(), core::kMaxCopyManifestBytes);
  }
  auto file = TRY(storage.create(path_in(unfinished, core::kManifestName)));
  TRY(file->append(std::as_bytes(std::span(text))));
  if (sync) TRY(file->sync());
  TRY(file->close());
  if (sync) TRY(storage.sync_directory(unfinished));
  // A copy that was found damaged may have the name.
  TRY(remove_tree(storage, path_of(manifest.name, manifest.owner)));
  TRY(storage.rename(unfinished, path_of(manifest.name, manifest.owner)));
  if (!sync) return {};
  TRY(storage.sync_directory(directory));
  return storage.sync_directory("");
}

std::string head_of(const std::string& manifest) {
  std::string head(sizeof(std::uint64_t), '\0');
  for (std::size_t i = 0; i < head.size(); ++i)
    head[i] = static_cast<char>((manifest.size() >> (8 * i)) & 0xff);
  return head + manifest;
}

std::uint64_t stream_bytes(const core::CopyManifest& manifest) {
  return sizeof(std::uint64_t) + core::to_text(manifest).size() + manifest.file_bytes();
}

/// Looks at one copy without reading its bytes.
Result<core::HeldCopy> look_at(Storage& storage, const core::CopyName& name, core::Rank owner) {
  const auto manifest = TRY(read_copy_manifest(storage, name, owner));
  const auto path = path_of(name, owner);
  for (const auto& file : manifest.files) {
    const auto bytes = TRY(storage.size(path_in(path, file.name)));
    if (bytes != file.bytes()) {
      return core::fail(Errc::corrupt, "{} has {} bytes, the manifest says {}", path_in(path, file.name),
                        bytes, file.bytes());
    }
  }
  return core::HeldCopy{name, owner, stream_bytes(manifest), manifest.world, core::hash64(manifest.layout),
                        {}};
}

}  // namespace

Result<std::vector<core::CopyName>> list_saves(Storage& storage) {
  std::vector<core::CopyName> found;
  for (const auto& directory : TRY(storage.list(""))) {
    if (auto name = save_of(directory)) found.push_back(*name);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

Result<FoundCopies> find_copies(Storage& storage) {
  FoundCopies found;
  for (const auto& name : TRY(list_saves(storage))) {
    const auto place = directory_of(name);
    auto copies = storage.list(place);
    if (!copies) {
      const bool is_file = storage.size(place).has_value();
      if (!is_file) found.passed_over.push_back(copies.error().message);
      continue;
    }
    for (const auto& directory : *copies) {
      const auto owner = owner_of(name, directory);
      if (!owner) continue;
      auto copy = look_at(storage, name, *owner);
      if (copy) {
        found.held.push_back(*copy);
      } else {
        found.passed_over.push_back(copy.error().message);
      }
    }
  }
  return found;
}

Result<core::CopyManifest> read_copy_manifest(Storage& storage, const core::CopyName& name,
                                              core::Rank owner) {
  const auto path = path_in(path_of(name, owner), core::kManifestName);
  const auto size = TRY(storage.size(path));
  if (size > core::kMaxCopyManifestBytes)
    return core::fail(Errc::corrupt, "{} has {} bytes, more than a manifest may have", path, size);
  const auto bytes = TRY(storage.read(path, 0, size));
  auto manifest = core::parse_copy_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!manifest) return core::fail(manifest.error().code, "{}: {}", path, manifest.error().message);
  if (manifest->name == name && manifest->owner == owner) return manifest;
  return core::fail(Errc::corrupt, "{} is from rank {} and the save {}: it lies in the wrong place", path,
                    manifest->owner.value, directory_of(manifest->name));
}

Result<void> make_copy_directory(Storage& storage, const core::CopyName& name, core::Rank owner) {
  const auto made = storage.make_directory(directory_of(name));
  if (!made && made.error().code != Errc::already_exists) return made;
  TRY(remove_tree(storage, unfinished_path_of(name, owner)));
  return storage.make_directory(unfinished_path_of(name, owner));
}

Result<std::uint64_t> seal_copy(Storage& storage, const core::CopyManifest& manifest, bool sync) {
  TRY(give_name(storage, manifest, sync));
  return stream_bytes(manifest);
}

Result<void> clear_unfinished_copies(Storage& storage) {
  for (const auto& name : TRY(list_saves(storage))) {
    const auto place = directory_of(name);
    const auto copies = storage.list(place);
    if (!copies) continue;
    for (std::string_view copy : *copies) {
      if (!copy.ends_with(core::kUnfinishedCopy)) continue;
      if (owner_of(name, copy.substr(0, copy.size() - core::kUnfinishedCopy.size())))
        TRY(remove_tree(storage, path_in(place, copy)));
    }
  }
  return {};
}

Result<void> tidy_older_copies(Storage& storage, const core::CopyName& newest, int keep) {
  int kept = 1;
  for (const auto& name : TRY(list_saves(storage))) {
    if (name.step < newest.step && kept++ >= keep) TRY(remove_tree(storage, directory_of(name)));
  }
  return {};
}

Result<void> tidy_copies(Storage& storage, const core::CopyName& newest, int keep) {
  int kept = 0;
  for (const auto& name : TRY(list_saves(storage))) {
    const bool is_kept = name == newest || (name.step < newest.step && kept < keep);
    if (is_kept) {
      kept += 1;
    } else {
      TRY(remove_tree(storage, directory_of(name)));
    }
  }
  return {};
}

namespace {

/// The next segment of a copy whose directory is `path`.
Result<void> read_segment(Storage& storage, const std::string& path, std::span<std::byte> memory,
                          Upload* upload, CopyCheck& check) {
  while (!memory.empty()) {
    // Hashed while it is still in the cache.
    const auto most = upload == nullptr ? kReadBytes : std::min(kReadBytes, upload->window().size());
    const auto part = memory.first(std::min(most, memory.size()));
    const auto window = upload == nullptr ? part : upload->window().first(part.size());
    const auto file = path_in(path, check.file().name);
    const auto count = TRY(storage.read_into(file, check.offset(), window));
    if (count != window.size())
      return core::fail(Errc::corrupt, "{} ends at byte {}", file, check.offset() + count);
    if (auto good = check.pass(window); !good)
      return core::fail(good.error().code, "{}: {}", path, good.error().message);
    if (upload != nullptr) {
      TRY(upload->put(core::DType::u8, window.data(), core::DType::u8, part.data(), part.size()));
      TRY(upload->settle());
    }
    memory = memory.subspan(part.size());
  }
  return {};
}

}  // namespace

Result<void> read_copy(Storage& storage, const core::CopyManifest& manifest,
                       const core::SaveStructure& structure, std::span<const std::span<std::byte>> memory,
                       UploadPool* uploads) {
  CHECK(memory.size() == structure.pieces.size(), "every piece has its memory");
  const auto pieces = core::pieces_with_bytes(structure);
  const auto planned = core::plan_files(structure, pieces, manifest.owner);
  const auto path = path_of(manifest.name, manifest.owner);
  core::WrittenShards hashes;
  for (const auto& file : manifest.files) {
    for (std::size_t i = 1; i < file.segments.size(); ++i) hashes.hashes.push_back(file.segments[i].hash);
  }
  const bool is_ours = manifest.layout == core::layout_text(structure) &&
                       hashes.hashes.size() == pieces.size() &&
                       core::copy_files(planned, hashes) == manifest.files;
  if (!is_ours) {
    return core::fail(Errc::mismatch,
                      "{} is the copy of a job with other parameters, buckets or another placement of them",
                      path);
  }
  const auto upload = uploads != nullptr ? uploads->take() : UploadPool::Lease{};
  CopyCheck check(manifest.files);
  for (const auto& file : planned) {
    std::vector<std::byte> header(file.header.size());
    TRY(read_segment(storage, path, header, nullptr, check));
    for (const auto& shard : file.shards)
      TRY(read_segment(storage, path, memory[shard.piece], upload.get(), check));
  }
  return {};
}

Result<void> verify_copy(Storage& storage, const core::CopyName& name, core::Rank owner) {
  const auto manifest = TRY(read_copy_manifest(storage, name, owner));
  auto source = TRY(CopySource::open(storage, name, owner));
  std::vector<std::byte> window(kReadBytes);
  for (std::uint64_t rest = stream_bytes(manifest); rest > 0;) {
    const auto part = std::span(window).first(std::min<std::uint64_t>(rest, window.size()));
    TRY(source->read(part));
    rest -= part.size();
  }
  return {};
}

Result<void> CopyCheck::pass(std::span<const std::byte> bytes) {
  hash_.add(bytes);
  offset_ += bytes.size();
  const auto& now = file();
  if (offset_ < now.segments[segment_].end) return {};
  if (hash_.value() != now.segments[segment_].hash) {
    return core::fail(Errc::corrupt, "{}: the bytes up to {} do not match their hash: the file was altered",
                      now.name, offset_);
  }
  hash_.reset();
  segment_ += 1;
  if (segment_ < now.segments.size()) return {};
  file_ += 1;
  segment_ = 0;
  offset_ = 0;
  return {};
}

Result<std::unique_ptr<CopySource>> CopySource::open(Storage& storage, const core::CopyName& name,
                                                     core::Rank owner) {
  auto manifest = TRY(read_copy_manifest(storage, name, owner));
  auto head = head_of(core::to_text(manifest));
  return std::unique_ptr<CopySource>(
      new CopySource(storage, path_of(name, owner), std::move(head), std::move(manifest.files)));
}

Result<void> CopySource::read(std::span<std::byte> bytes) {
  const auto of_head = std::min(bytes.size(), head_.size() - head_read_);
  std::memcpy(bytes.data(), head_.data() + head_read_, of_head);
  head_read_ += of_head;
  bytes = bytes.subspan(of_head);
  while (!bytes.empty()) {
    if (check_.at_end()) return core::fail(Errc::internal, "{} ends before what was promised of it", path_);
    const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), check_.rest()));
    const auto file = path_in(path_, check_.file().name);
    const auto count = TRY(storage_.read_into(file, check_.offset(), part));
    if (count != part.size())
      return core::fail(Errc::corrupt, "{} ends at byte {}", file, check_.offset() + count);
    if (auto good = check_.pass(part); !good)
      return core::fail(good.error().code, "{}: {}", path_, good.error().message);
    bytes = bytes.subspan(part.size());
  }
  return {};
}

Result<void> CopySink::write(std::span<const std::byte> bytes) {
  if (failure_) failure_ = take(bytes);
  return failure_;
}

Result<void> CopySink::take(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (!check_) {
      TRY(take_head(bytes));
    } else if (!check_->at_end()) {
      TRY(take_file(bytes));
    } else {
      return core::fail(Errc::corrupt, "more bytes than the copy of rank {} has came", owner_.value);
    }
  }
  return {};
}

Result<void> CopySink::take_head(std::span<const std::byte>& bytes) {
  constexpr auto kLength = sizeof(std::uint64_t);
  const auto take = [&](std::uint64_t wanted) {
    const auto count = std::min<std::uint64_t>(bytes.size(), wanted - head_.size());
    head_.append(reinterpret_cast<const char*>(bytes.data()), count);
    bytes = bytes.subspan(count);
    return head_.size() == wanted;
  };
  if (head_.size() < kLength && !take(kLength)) return {};
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLength; ++i)
    length |= std::uint64_t{static_cast<unsigned char>(head_[i])} << (8 * i);
  if (length > core::kMaxCopyManifestBytes)
    return core::fail(Errc::corrupt, "the manifest of rank {}'s copy has {} bytes, more than it may have",
                      owner_.value, length);
  if (!take(kLength + length)) return {};
  manifest_ = TRY(core::parse_copy_manifest(std::string_view(head_).substr(kLength)));
  if (manifest_.name != name_ || manifest_.owner != owner_) {
    return core::fail(Errc::mismatch, "the copy of rank {} of {} came, that of rank {} of {} was to come",
                      manifest_.owner.value, directory_of(manifest_.name), owner_.value, directory_of(name_));
  }
  TRY(make_copy_directory(storage_, name_, owner_));
  check_.emplace(manifest_.files);
  return {};
}

Result<void> CopySink::take_file(std::span<const std::byte>& bytes) {
  const auto path = path_in(unfinished_path_of(name_, owner_), check_->file().name);
  if (!file_) file_ = TRY(storage_.create(path));
  const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), check_->rest()));
  bytes = bytes.subspan(part.size());
  TRY(file_->append(part));
  TRY(check_->pass(part));
  return check_->offset() == 0 ? end_file() : Result<void>{};
}

Result<void> CopySink::end_file() {
  if (sync_) TRY(file_->sync());
  TRY(file_->close());
  file_.reset();
  return {};
}

Result<void> CopySink::close() {
  file_.reset();
  TRY(Result<void>(failure_));
  if (!check_ || !check_->at_end())
    return core::fail(Errc::corrupt, "the copy of rank {} ended too early", owner_.value);
  return give_name(storage_, manifest_, sync_);
}

}  // namespace troupe::actors

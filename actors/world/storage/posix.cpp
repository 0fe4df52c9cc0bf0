#include "actors/world/storage/posix.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "actors/world/storage/direct_read.hpp"
#include "core/errors.hpp"
#include "posix/descriptor.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using posix::Descriptor;

Errc code_of(int error) {
  switch (error) {
    case ENOENT:
      return Errc::not_found;
    case EEXIST:
      return Errc::already_exists;
    case ELOOP:
      return Errc::corrupt;
    default:
      return Errc::io;
  }
}

core::Error error_of(std::string_view what, std::string_view path, int error) {
  const char* advice = "";
  if (error == ENOSPC || error == EDQUOT) advice = "; free some space or choose another directory";
  if (error == ELOOP) advice = "; it is a link, which troupe checkpoint follows with --follow-links";
  return {code_of(error),
          fmt::format("cannot {} \"{}\": {}{}", what, path, std::generic_category().message(error), advice)};
}

constexpr std::size_t kBlock = 4096;  // direct writes are multiples of this

/// Writes past the page cache if the file system can: what is written is not read again soon, and copying it
/// there costs the trainer memory bandwidth. Whole blocks whose memory has the same alignment as their place
/// in the file go to the disk directly; the rest is gathered in a block of the file's own.
class PosixFile final : public WritableFile {
 public:
  PosixFile(std::string path, Descriptor descriptor, bool direct)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), direct_(direct) {
    if (direct_) block_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, kBlock)));
  }

  core::Result<void> append(std::span<const std::byte> bytes) override {
    if (!direct_) {
      // Direct writes may have been given up with bytes still gathered, which come first.
      TRY(flush());
      return write(bytes);
    }
    if (gathered_ > 0) bytes = gather(bytes);
    if (gathered_ == kBlock) TRY(flush());
    const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % kBlock == 0;
    if (aligned && gathered_ == 0) {
      const auto whole = bytes.size() / kBlock * kBlock;
      TRY(write(bytes.first(whole)));
      bytes = bytes.subspan(whole);
    }
    while (!bytes.empty()) {
      bytes = gather(bytes);
      if (gathered_ == kBlock) TRY(flush());
    }
    return {};
  }
  core::Result<void> sync() override {
    TRY(write_rest());
    if (::fsync(descriptor_.get()) == 0) return {};
    return tl::unexpected(error_of("make durable", path_, errno));
  }
  core::Result<void> close() override {
    TRY(write_rest());
    if (descriptor_.get() < 0 || ::close(descriptor_.release()) == 0) return {};
    return tl::unexpected(error_of("close", path_, errno));
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  core::Result<void> write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      ssize_t written = ::write(descriptor_.get(), bytes.data(), bytes.size());
      if (written >= 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(written));
      } else if (errno == EINVAL && direct_) {
        direct_ = false;
        TRY(leave_direct_mode());
      } else if (errno != EINTR) {
        return tl::unexpected(error_of("write", path_, errno));
      }
    }
    return {};
  }

  /// Copies into the block what fits, and returns the rest.
  std::span<const std::byte> gather(std::span<const std::byte> bytes) {
    const auto count = std::min(bytes.size(), kBlock - gathered_);
    std::copy_n(bytes.data(), count, block_.get() + gathered_);
    gathered_ += count;
    return bytes.subspan(count);
  }

  core::Result<void> flush() {
    const auto count = std::exchange(gathered_, 0);
    return write({block_.get(), count});
  }

  core::Result<void> leave_direct_mode() {
    const int flags = ::fcntl(descriptor_.get(), F_GETFL);
    if (flags >= 0 && ::fcntl(descriptor_.get(), F_SETFL, flags & ~O_DIRECT) == 0) return {};
    return tl::unexpected(error_of("write", path_, errno));
  }

  /// The last bytes do not fill a block; from here on the file is written through the cache.
  core::Result<void> write_rest() {
    if (descriptor_.get() < 0) return {};
    if (std::exchange(direct_, false)) TRY(leave_direct_mode());
    return flush();
  }

  std::string path_;
  Descriptor descriptor_;
  bool direct_;
  std::unique_ptr<std::byte, Free> block_;
  std::size_t gathered_ = 0;
};

/// The form that the *at calls take.
const char* name_of(const std::string& path) {
  return path.empty() ? "." : path.c_str();
}

/// Like openat(); ELOOP if there is a link where a directory was expected.
Descriptor open_below(int directory, const std::string& name, int flags) {
  Descriptor opened(::openat(directory, name.c_str(), flags | O_CLOEXEC, 0666));
  if (opened.is_open() || errno != ENOTDIR) return opened;
  struct stat status {};
  const bool is_link =
      ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
  errno = is_link ? ELOOP : ENOTDIR;
  return opened;
}

}  // namespace

core::Result<std::unique_ptr<PosixStorage>> PosixStorage::open(const std::string& directory, Links links,
                                                               Reads reads) {
  Descriptor opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open()) return tl::unexpected(error_of("open the directory", directory, errno));
  return std::unique_ptr<PosixStorage>(new PosixStorage(directory, std::move(opened), links, reads));
}

core::Result<std::unique_ptr<PosixStorage>> PosixStorage::open_or_make(const std::string& directory) {
  std::vector<std::filesystem::path> missing;  // the deepest first
  std::error_code error;
  std::filesystem::path path(directory);
  if (!path.has_filename()) path = path.parent_path();
  for (; !path.empty() && !std::filesystem::exists(path, error); path = path.parent_path())
    missing.push_back(path);
  std::filesystem::create_directories(directory, error);
  // open() reports best whether it exists now and is a directory.
  auto storage = TRY(open(directory));
  for (auto made = missing.rbegin(); made != missing.rend(); ++made) {
    const auto above = made->parent_path();
    TRY(TRY(open(above.empty() ? "." : above.string()))->sync_directory(""));
  }
  return storage;
}

core::Error PosixStorage::failure(std::string_view what, std::string_view path, int error) const {
  return error_of(what, path.empty() ? directory_ : (std::filesystem::path(directory_) / path).string(),
                  error);
}

core::Result<Descriptor> PosixStorage::open_at(std::string_view path, int flags) const {
  const auto parts = TRY(split_path(path));
  // A pipe without its other end, or a device that is not ready, must not block us.
  flags |= O_NONBLOCK;
  if (links_ != Links::follow) flags |= O_NOFOLLOW;
  Descriptor directory;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    const int link_flags = links_ != Links::follow ? O_NOFOLLOW : 0;
    const int above = i == 0 ? descriptor_.get() : directory.get();
    Descriptor next = open_below(above, parts[i], O_PATH | O_DIRECTORY | link_flags);
    if (!next.is_open()) return tl::unexpected(failure("open", path, errno));
    directory = std::move(next);
  }
  const int above = parts.size() < 2 ? descriptor_.get() : directory.get();
  Descriptor opened = open_below(above, parts.empty() ? "." : parts.back(), flags);
  if (!opened.is_open() && errno == ELOOP && links_ == Links::to_blobs && parts.size() == 1 &&
      (flags & (O_ACCMODE | O_CREAT | O_DIRECTORY)) == O_RDONLY) {
    opened = open_blob(parts.back(), flags);
  }
  if (!opened.is_open()) return tl::unexpected(failure("open", path, errno));
  return opened;
}

// The path is walked step by step, so that no link leads out of it. ELOOP for another link.
Descriptor PosixStorage::open_blob(const std::string& name, int flags) const {
  constexpr std::string_view kBlobs = "../../blobs/";
  char target[256];
  const auto length = ::readlinkat(descriptor_.get(), name.c_str(), target, sizeof(target));
  std::string_view text(target, length < 0 ? 0 : static_cast<std::size_t>(length));
  const bool is_blob = text.starts_with(kBlobs) && text.size() < sizeof(target);
  if (is_blob) text.remove_prefix(kBlobs.size());
  if (!is_blob || text.empty() || text.find('/') != std::string_view::npos || text.front() == '.') {
    errno = ELOOP;
    return {};
  }
  Descriptor above;
  for (const char* step : {"..", "..", "blobs"}) {
    Descriptor next = open_below(above.is_open() ? above.get() : descriptor_.get(), step,
                                 O_PATH | O_DIRECTORY | O_NOFOLLOW);
    if (!next.is_open()) return {};
    above = std::move(next);
  }
  return open_below(above.get(), std::string(text), flags);
}

core::Result<Descriptor> PosixStorage::open_regular(std::string_view path, int flags) const {
  Descriptor file = TRY(open_at(path, flags));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return tl::unexpected(failure("look at", path, errno));
  if (S_ISDIR(status.st_mode)) return tl::unexpected(failure("open", path, EISDIR));
  if (!S_ISREG(status.st_mode)) {
    return core::fail(Errc::corrupt, "\"{}/{}\" is a pipe, a socket or a device, no regular file; remove it",
                      directory_, path);
  }
  return file;
}

core::Result<Descriptor> PosixStorage::open_file(std::string_view path) const {
  return open_regular(path, O_RDONLY);
}

core::Result<Descriptor> PosixStorage::open_directory(std::string_view path) const {
  return open_at(path, O_RDONLY | O_DIRECTORY);
}

core::Result<std::unique_ptr<WritableFile>> PosixStorage::create(std::string_view path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  auto name = (std::filesystem::path(directory_) / path).string();
  // A file system without direct writes refuses to open it.
  if (auto direct = open_regular(path, kFlags | O_DIRECT)) {
    return std::make_unique<PosixFile>(std::move(name), std::move(*direct), true);
  }
  Descriptor file = TRY(open_regular(path, kFlags));
  return std::make_unique<PosixFile>(std::move(name), std::move(file), false);
}

core::Result<std::vector<std::byte>> PosixStorage::read(std::string_view path, std::uint64_t offset,
                                                        std::size_t limit) {
  const Descriptor file = TRY(open_file(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return tl::unexpected(failure("read", path, errno));
  auto end = static_cast<std::uint64_t>(status.st_size);
  std::vector<std::byte> bytes(std::min<std::uint64_t>(limit, end > offset ? end - offset : 0));
  bytes.resize(TRY(read_from(file.get(), path, offset, bytes)));
  return bytes;
}

core::Result<std::size_t> PosixStorage::read_into(std::string_view path, std::uint64_t offset,
                                                  std::span<std::byte> bytes) {
  if (reads_ == Reads::past_cache && bytes.size() >= kShortestDirectRead) {
    // A file system without direct reads refuses to open or to read it.
    if (const auto direct = open_regular(path, O_RDONLY | O_DIRECT)) {
      const auto count = read_direct(direct->get(), offset, bytes);
      if (count >= 0) return static_cast<std::size_t>(count);
      if (errno != EINVAL) return tl::unexpected(failure("read", path, errno));
    }
  }
  const Descriptor file = TRY(open_file(path));
  return read_from(file.get(), path, offset, bytes);
}

core::Result<std::size_t> PosixStorage::read_from(int file, std::string_view path, std::uint64_t offset,
                                                  std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    ssize_t count =
        ::pread(file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count == 0) break;
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      return tl::unexpected(failure("read", path, errno));
    }
  }
  return done;
}

core::Result<std::uint64_t> PosixStorage::size(std::string_view path) {
  const Descriptor file = TRY(open_file(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return tl::unexpected(failure("look at", path, errno));
  return static_cast<std::uint64_t>(status.st_size);
}

core::Result<void> PosixStorage::make_directory(std::string_view path) {
  TRY(split_path(path));
  if (::mkdirat(descriptor_.get(), name_of(std::string(path)), 0777) == 0) return {};
  return tl::unexpected(failure("make the directory", path, errno));
}

core::Result<std::vector<std::string>> PosixStorage::list(std::string_view path) {
  Descriptor opened = TRY(open_at(path, O_RDONLY | O_DIRECTORY));
  DIR* directory = ::fdopendir(opened.get());
  if (directory == nullptr) return tl::unexpected(failure("list", path, errno));
  opened.release();  // closedir() closes it
  std::vector<std::string> names;
  errno = 0;
  while (dirent* entry = ::readdir(directory)) {
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  int error = errno;
  ::closedir(directory);
  if (error != 0) return tl::unexpected(failure("list", path, error));
  std::ranges::sort(names);
  return names;
}

core::Result<void> PosixStorage::rename(std::string_view from, std::string_view to) {
  TRY(split_path(from));
  TRY(split_path(to));
  if (::renameat(descriptor_.get(), name_of(std::string(from)), descriptor_.get(),
                 name_of(std::string(to))) == 0)
    return {};
  return tl::unexpected(failure(fmt::format("rename to \"{}\"", to), from, errno));
}

core::Result<void> PosixStorage::remove(std::string_view path) {
  TRY(split_path(path));
  std::string name(path);
  if (::unlinkat(descriptor_.get(), name_of(name), 0) == 0) return {};
  if (errno == EISDIR && ::unlinkat(descriptor_.get(), name_of(name), AT_REMOVEDIR) == 0) return {};
  return tl::unexpected(failure("remove", path, errno));
}

core::Result<void> PosixStorage::sync_directory(std::string_view path) {
  const Descriptor directory = TRY(open_at(path, O_RDONLY | O_DIRECTORY));
  if (::fsync(directory.get()) == 0) return {};
  return tl::unexpected(failure("make the names durable in", path, errno));
}

}  // namespace troupe::actors

#include "actors/world/simulation/storage.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

using core::Errc;

/// An open file. A crash closes it without notice.
class SimulatedStorage::File final : public WritableFile {
 public:
  File(SimulatedStorage& storage, NodePointer node)
      : storage_(storage), node_(std::move(node)), crashes_(storage.crashes_) {}

  core::Result<void> append(std::span<const std::byte> bytes) override {
    TRY(check_open());
    return storage_.append(*node_, bytes);
  }
  core::Result<void> sync() override {
    TRY(check_open());
    return storage_.sync(*node_);
  }
  core::Result<void> close() override {
    TRY(check_open());
    node_.reset();
    return {};
  }

 private:
  core::Result<void> check_open() const {
    if (node_ && crashes_ == storage_.crashes_) return {};
    return core::fail(Errc::io, "the file is not open any more");
  }

  SimulatedStorage& storage_;
  NodePointer node_;
  std::uint64_t crashes_;
};

SimulatedStorage::SimulatedStorage(SimulatedStorageOptions options)
    : options_(std::move(options)),
      random_(options_.seed, options_.name, "storage"),
      root_(std::make_shared<Node>()) {
  root_->is_directory = true;
}

SimulatedStorage::~SimulatedStorage() = default;

core::Result<SimulatedStorage::NodePointer> SimulatedStorage::find(std::string_view path) const {
  NodePointer node = root_;
  for (const std::string& part : TRY(split_path(path))) {
    auto found = node->names.find(part);
    if (found == node->names.end()) return core::fail(Errc::not_found, "\"{}\" is not there", path);
    node = found->second;
  }
  return node;
}

core::Result<SimulatedStorage::Place> SimulatedStorage::locate(std::string_view path) const {
  auto parts = TRY(split_path(path));
  if (parts.empty()) return core::fail(Errc::io, "the storage's own directory cannot be changed");
  std::size_t slash = path.rfind('/');
  auto directory = TRY(find(slash == std::string_view::npos ? "" : path.substr(0, slash)));
  if (!directory->is_directory) return core::fail(Errc::io, "\"{}\" is below a file", path);
  auto found = directory->names.find(parts.back());
  return Place{directory, parts.back(), found == directory->names.end() ? nullptr : found->second};
}

void SimulatedStorage::apply(Names& names, const Change& change) {
  for (const auto& [name, node] : change) {
    if (node) {
      names.insert_or_assign(name, node);
    } else {
      names.erase(name);
    }
  }
}

void SimulatedStorage::change(Node& directory, Change change) {
  apply(directory.names, change);
  directory.changes.push_back(std::move(change));
}

core::Result<std::unique_ptr<WritableFile>> SimulatedStorage::create(std::string_view path) {
  auto place = TRY(locate(path));
  if (place.node && place.node->is_directory) return core::fail(Errc::io, "\"{}\" is a directory", path);
  if (!place.node) {
    place.node = std::make_shared<Node>();
    change(*place.directory, {{place.name, place.node}});
  }
  used_bytes_ -= place.node->bytes.size();
  place.node->bytes.clear();
  place.node->forgotten.clear();
  place.node->clean_bytes = 0;
  return std::make_unique<File>(*this, place.node);
}

core::Result<void> SimulatedStorage::append(Node& file, std::span<const std::byte> bytes) {
  bool is_full = used_bytes_ + bytes.size() > options_.capacity_bytes;
  bool fails = is_full || random_.happens(options_.write_failure);
  std::size_t taken = bytes.size();
  if (is_full) taken = options_.capacity_bytes - std::min(options_.capacity_bytes, used_bytes_);
  if (fails && !is_full) taken = random_.below(static_cast<std::uint32_t>(bytes.size() + 1));
  file.bytes.insert(file.bytes.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
  used_bytes_ += taken;
  if (is_full) return core::fail(Errc::io, "no space left on device; free some or choose another directory");
  if (fails) return core::fail(Errc::io, "a write failed after {} of {} bytes", taken, bytes.size());
  return {};
}

core::Result<void> SimulatedStorage::sync(Node& file) {
  if (lying_) return {};
  std::size_t dirty = std::exchange(file.clean_bytes, file.bytes.size());
  if (random_.happens(options_.sync_failure)) {
    file.forgotten.emplace_back(dirty, file.bytes.size());
    return core::fail(Errc::io, "the bytes could not be made durable; write the file anew");
  }
  file.durable_bytes = image_of(file);
  return {};
}

std::vector<std::byte> SimulatedStorage::image_of(const Node& file) {
  std::vector<std::byte> image = file.bytes;
  for (auto [begin, end] : file.forgotten) {
    for (std::size_t at = begin; at < end; ++at) {
      image[at] = at < file.durable_bytes.size() ? file.durable_bytes[at] : std::byte{0};
    }
  }
  return image;
}

core::Result<std::vector<std::byte>> SimulatedStorage::read(std::string_view path, std::uint64_t offset,
                                                            std::size_t limit) {
  auto node = TRY(find(path));
  if (node->is_directory) return core::fail(Errc::io, "\"{}\" is a directory", path);
  if (random_.happens(options_.read_failure)) return core::fail(Errc::io, "cannot read \"{}\"", path);
  std::size_t begin = std::min<std::uint64_t>(offset, node->bytes.size());
  std::size_t count = std::min(limit, node->bytes.size() - begin);
  auto first = node->bytes.begin() + static_cast<std::ptrdiff_t>(begin);
  return std::vector<std::byte>(first, first + static_cast<std::ptrdiff_t>(count));
}

core::Result<std::uint64_t> SimulatedStorage::size(std::string_view path) {
  auto node = TRY(find(path));
  if (node->is_directory) return core::fail(Errc::io, "\"{}\" is a directory", path);
  return node->bytes.size();
}

core::Result<void> SimulatedStorage::make_directory(std::string_view path) {
  auto place = TRY(locate(path));
  if (place.node) return core::fail(Errc::already_exists, "\"{}\" is there already", path);
  auto made = std::make_shared<Node>();
  made->is_directory = true;
  change(*place.directory, {{place.name, made}});
  return {};
}

core::Result<std::vector<std::string>> SimulatedStorage::list(std::string_view path) {
  auto node = TRY(find(path));
  if (!node->is_directory) return core::fail(Errc::io, "\"{}\" is a file", path);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->names) names.push_back(name);
  return names;
}

core::Result<void> SimulatedStorage::rename(std::string_view from, std::string_view to) {
  auto source = TRY(locate(from));
  auto target = TRY(locate(to));
  if (!source.node) return core::fail(Errc::not_found, "\"{}\" is not there", from);
  if (source.node == target.node) return {};
  if (target.node && target.node->is_directory != source.node->is_directory) {
    return core::fail(Errc::io, "\"{}\" cannot replace \"{}\": one is a directory", from, to);
  }
  if (target.node && !target.node->names.empty()) return core::fail(Errc::io, "\"{}\" is not empty", to);
  if (std::string(to).rfind(std::string(from) + "/", 0) == 0) {
    return core::fail(Errc::io, "\"{}\" cannot go below itself", from);
  }
  if (target.node) used_bytes_ -= target.node->bytes.size();
  if (source.directory == target.directory) {
    change(*source.directory, {{source.name, nullptr}, {target.name, source.node}});
  } else {
    change(*target.directory, {{target.name, source.node}});
    change(*source.directory, {{source.name, nullptr}});
  }
  return {};
}

core::Result<void> SimulatedStorage::remove(std::string_view path) {
  auto place = TRY(locate(path));
  if (!place.node) return core::fail(Errc::not_found, "\"{}\" is not there", path);
  if (!place.node->names.empty()) return core::fail(Errc::io, "\"{}\" is not empty", path);
  used_bytes_ -= place.node->bytes.size();
  change(*place.directory, {{place.name, nullptr}});
  return {};
}

core::Result<void> SimulatedStorage::sync_directory(std::string_view path) {
  auto node = TRY(find(path));
  if (!node->is_directory) return core::fail(Errc::io, "\"{}\" is a file", path);
  if (lying_) return {};
  if (random_.happens(options_.sync_failure)) {
    return core::fail(Errc::io, "the names in \"{}\" could not be made durable", path);
  }
  node->durable_names = node->names;
  node->changes.clear();
  return {};
}

core::Result<void> SimulatedStorage::rot(std::string_view path) {
  auto node = TRY(find(path));
  if (node->bytes.empty()) return core::fail(Errc::invalid_argument, "\"{}\" has no bit to flip", path);
  std::size_t place = random_.below(static_cast<std::uint32_t>(node->bytes.size()));
  auto bit = static_cast<std::byte>(1U << random_.below(8));
  node->bytes[place] ^= bit;
  if (place < node->durable_bytes.size()) node->durable_bytes[place] ^= bit;
  return {};
}

void SimulatedStorage::crash() {
  ++crashes_;
  used_bytes_ = 0;
  crash_node(*root_);
}

void SimulatedStorage::crash_node(Node& node) {
  if (!node.is_directory) return crash_file(node);
  std::size_t survive = random_.below(static_cast<std::uint32_t>(node.changes.size() + 1));
  for (std::size_t i = 0; i < survive; ++i) apply(node.durable_names, node.changes[i]);
  node.changes.clear();
  node.names = node.durable_names;
  for (auto& [name, child] : node.names) crash_node(*child);
}

void SimulatedStorage::crash_file(Node& file) {
  enum Fate : std::uint32_t { kept, lost, torn, garbage, kFates };
  file.bytes = image_of(file);
  auto& cached = file.bytes;
  auto& durable = file.durable_bytes;
  std::size_t sector = options_.sector_bytes;
  std::size_t sectors = (std::max(cached.size(), durable.size()) + sector - 1) / sector;
  for (std::size_t i = 0; i < sectors; ++i) {
    std::size_t begin = i * sector;
    std::size_t old_end = std::min(durable.size(), begin + sector);
    std::size_t new_end = std::min(cached.size(), begin + sector);
    bool is_same = old_end == new_end && begin <= old_end &&
                   std::equal(cached.begin() + static_cast<std::ptrdiff_t>(begin),
                              cached.begin() + static_cast<std::ptrdiff_t>(new_end),
                              durable.begin() + static_cast<std::ptrdiff_t>(begin));
    if (is_same || new_end <= begin) continue;
    std::uint32_t fate = random_.below(kFates);
    if (fate == lost) continue;
    if (durable.size() < new_end) durable.resize(new_end);
    std::size_t border = fate == torn ? begin + (new_end - begin) / 2 : new_end;
    for (std::size_t at = begin; at < border; ++at) {
      durable[at] = fate == garbage ? static_cast<std::byte>(random_.bits()) : cached[at];
    }
  }
  file.forgotten.clear();
  cached = durable;
  file.clean_bytes = cached.size();
  used_bytes_ += cached.size();
}

}  // namespace troupe::actors

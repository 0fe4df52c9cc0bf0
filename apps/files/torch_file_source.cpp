#include "apps/files/torch_file_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "apps/files/meter.hpp"
#include "core/errors.hpp"
#include "core/interop/plain_data.hpp"
#include "core/interop/torch_archive.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::KeyPath;
using core::PickleKind;
using core::PickleNode;
using core::Result;

constexpr std::array<std::string_view, 4> kSuffixes{".pt", ".pth", ".bin", ".ckpt"};
constexpr std::size_t kLongestName = 2048;
/// Levels of dicts below which a value is one value.
constexpr std::size_t kMostLevels = 32;
/// The beginning of files of torch.save before 1.6: a pickle of the number 0x1950a86a20f9469cfc6c.
constexpr std::string_view kOldBeginning("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14);

class TorchFileReader {
 public:
  TorchFileReader(NestedState& state, std::uint32_t file, bool check)
      : state_(state), file_(file), check_(check) {}

  Result<void> read(KeyPath above) {
    const auto bytes = state_.file(file_).bytes();
    const std::string_view beginning(reinterpret_cast<const char*>(bytes.data()),
                                     std::min(bytes.size(), kOldBeginning.size()));
    if (beginning == kOldBeginning)
      return core::fail(Errc::unavailable,
                        "it is in the form of PyTorch before 1.6; load it with torch.load and save it again");
    archive_.emplace(TRY(core::TorchArchive::open(bytes)));
    const auto root = archive_->object.root();
    if (!core::torch_dict(root))
      return core::fail(Errc::unavailable, "it holds a {}; expected a state dict: save model.state_dict()",
                        class_name(root));
    const auto* pickle = archive_->files.find("data.pkl");
    const std::uint64_t pickle_bytes = pickle != nullptr ? pickle->bytes : 0;
    state_.allow_values(pickle_bytes);
    left_ = (std::uint64_t{4} << 20) + 4 * pickle_bytes;
    if (check_) TRY(check_sums());
    path_ = std::move(above);
    return visit(root);
  }

 private:
  Result<void> check_sums() {
    Meter meter("checking", state_.file(file_).bytes().size());
    for (const auto& entry : archive_->files.entries()) {
      TRY(archive_->files.check_crc(entry));
      state_.file(file_).release(archive_->files.data(entry));
      meter.add(entry.bytes);
    }
    return {};
  }

  /// One dict may stand for many, so all that is visited is counted.
  Result<void> spend(std::uint64_t cost) {
    if (cost > left_)
      return core::fail(Errc::corrupt, "more entries than a pickle of this size holds; it is damaged");
    left_ -= cost;
    return {};
  }

  /// Whether a list is one value: no dicts or tensors are in it, or in lists in it.
  bool is_one_value(const PickleNode& list) {
    if (const auto known = one_value_.find(list.id()); known != one_value_.end()) return known->second;
    bool is_one = true;
    for (std::size_t i = 0; i < list.size() && is_one; ++i) {
      const auto item = list.item(i);
      is_one = !core::torch_dict(item) && !core::is_torch_tensor(item) &&
               (item.kind() != PickleKind::list || is_one_value(item));
    }
    return one_value_[list.id()] = is_one;
  }

  Result<void> visit(const PickleNode& node) {
    TRY(spend(64));
    const auto dict = core::torch_dict(node);
    if (dict && dict->size() > 0 && path_.size() < kMostLevels && has_names(*dict)) return visit_dict(*dict);
    if (core::is_torch_tensor(node)) return add_tensor(node);
    const bool is_list = node.kind() == PickleKind::list;
    if (!is_list || path_.size() >= kMostLevels || is_one_value(node)) return add_value(node);
    for (std::size_t i = 0; i < node.size(); ++i) {
      path_.emplace_back(static_cast<std::int64_t>(i));
      TRY(visit(node.item(i)));
      path_.pop_back();
    }
    return {};
  }

  static bool has_names(const PickleNode& dict) {
    for (std::size_t i = 0; i < dict.size(); ++i) {
      const auto key = dict.key(i);
      const auto text = key.as_text();
      if (!key.as_integer() && (!text || text->size() > kLongestName)) return false;
    }
    return true;
  }

  Result<void> visit_dict(const PickleNode& dict) {
    for (std::size_t i = 0; i < dict.size(); ++i) {
      const auto key = dict.key(i);
      // Integers are indices of lists where PyTorch finds them in paths.
      path_.emplace_back(key.as_text() ? std::string(*key.as_text()) : fmt::format("{}", *key.as_integer()));
      TRY(visit(dict.value(i)));
      path_.pop_back();
    }
    return {};
  }

  Result<void> add_tensor(const PickleNode& node) {
    auto key = dotted(path_);
    TRY(spend(2 * key.size() + 128));
    auto tensor = core::torch_tensor(*archive_, node, core::ForeignTypes::carry);
    if (!tensor && tensor.error().code == Errc::unavailable) {
      state_.leave_out(std::move(key), tensor.error().message);
      return {};
    }
    if (!tensor) return core::fail(tensor.error().code, "'{}': {}", key, tensor.error().message);
    if (!state_.may_repeat(tensor->bytes, tensor->stored_bytes)) {
      state_.leave_out(std::move(key),
                       fmt::format("it repeats {} bytes to {}, and too much is repeated in all",
                                   tensor->stored_bytes, tensor->bytes));
      return {};
    }
    core::ManifestTensor described{std::move(key), tensor->dtype, tensor->shape, {}};
    if (tensor->bytes > 0) {
      const auto stored = state_.file(file_).bytes().subspan(tensor->offset, tensor->stored_bytes);
      described.shards.push_back(state_.shard(file_, stored, std::move(tensor->strides),
                                              core::size_of(tensor->dtype), core::Box::whole(tensor->shape)));
    }
    state_.add_tensor(std::move(described), path_, std::string(tensor->carried));
    return {};
  }

  Result<void> add_value(const PickleNode& node) {
    auto key = dotted(path_);
    TRY(spend(key.size()));
    auto value = core::value_from_pickle(node, state_.budget());
    if (value) {
      state_.add_value(key, path_, std::move(*value));
    } else {
      state_.leave_out(std::move(key), value.error().message);
    }
    return {};
  }

  NestedState& state_;
  std::uint32_t file_;
  bool check_;
  std::optional<core::TorchArchive> archive_;
  KeyPath path_;
  std::uint64_t left_ = 0;
  std::unordered_map<std::uint32_t, bool> one_value_;
};

}  // namespace

bool is_torch_file_name(std::string_view name) {
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

Result<void> add_torch_file(NestedState& state, const std::string& name, KeyPath above, bool check) {
  const auto number = TRY(state.add_file(name));
  auto done = TorchFileReader(state, number, check).read(std::move(above));
  if (!done) return core::fail(done.error().code, "{}: {}", name, done.error().message);
  return {};
}

Result<Source> open_torch_file(const std::string& path, bool check) {
  std::error_code error;
  const auto file = std::filesystem::canonical(path, error);
  if (error) return core::fail(Errc::io, "cannot read {}: {}", path, error.message());
  auto state = TRY(
      NestedState::open(SourceForm::torch_file, path, file.parent_path().string(), actors::Links::refuse));
  TRY(add_torch_file(state, file.filename().string(), {}, check));
  return std::move(state).finish();
}

}  // namespace troupe::apps

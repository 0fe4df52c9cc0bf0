#include "tests/checkpoint/crafted_dcp.hpp"

#include "core/interop/torch_archive.hpp"

namespace troupe::apps {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string repeated(std::string_view what, std::size_t bytes) {
  std::string text;
  text.reserve(bytes + what.size());
  while (text.size() < bytes) text += what;
  return text;
}

void CraftedDcp::object(std::string_view module, std::string_view name, const Fill& attributes) {
  pickle.global(module, name);
  pickle.tuple(0);
  pickle.new_object();
  dict(attributes);
  pickle.build();
}

void CraftedDcp::object(std::string_view name, const Fill& attributes) {
  object(kDcpModule, name, attributes);
}

void CraftedDcp::object_with(std::string_view name, std::uint32_t state) {
  pickle.global(kDcpModule, name);
  pickle.tuple(0);
  pickle.new_object();
  pickle.recall(state);
  pickle.build();
}

void CraftedDcp::size(const std::vector<std::int64_t>& extents) {
  if (extents.size() > 3) pickle.mark();
  for (const auto extent : extents) pickle.integer(extent);
  pickle.tuple(extents.size());
}

void CraftedDcp::list(const Fill& items) {
  pickle.empty_list();
  pickle.mark();
  items(*this);
  pickle.append_all();
}

void CraftedDcp::dict(const Fill& entries) {
  pickle.empty_dict();
  pickle.mark();
  entries(*this);
  pickle.set_all();
}

void CraftedDcp::dtype() {
  object("TensorProperties", [](CraftedDcp& dcp) {
    dcp.pickle.text("dtype");
    dcp.pickle.global("torch", "float32");
  });
}

void CraftedDcp::tensor(const std::vector<std::int64_t>& shape, const Fill& chunks) {
  object("TensorStorageMetadata", [&](CraftedDcp& dcp) {
    dcp.pickle.text("properties");
    dcp.dtype();
    dcp.pickle.text("size");
    dcp.size(shape);
    dcp.pickle.text("chunks");
    dcp.list(chunks);
  });
}

void CraftedDcp::chunk(const std::vector<std::int64_t>& offset, const std::vector<std::int64_t>& extent) {
  object("ChunkStorageMetadata", [&](CraftedDcp& dcp) {
    dcp.pickle.text("offsets");
    dcp.size(offset);
    dcp.pickle.text("sizes");
    dcp.size(extent);
  });
}

void CraftedDcp::stored(std::string_view key, const std::vector<std::int64_t>* offset, std::size_t begin,
                        std::size_t bytes, std::string_view file) {
  object("MetadataIndex", [&](CraftedDcp& dcp) {
    dcp.pickle.text("fqn");
    dcp.pickle.text(key);
    if (offset == nullptr) return;
    dcp.pickle.text("offset");
    dcp.size(*offset);
  });
  object("torch.distributed.checkpoint.filesystem", "_StorageInfo", [&](CraftedDcp& dcp) {
    dcp.pickle.text("relative_path");
    dcp.pickle.text(file);
    dcp.pickle.text("offset");
    dcp.pickle.integer(static_cast<std::int64_t>(begin));
    dcp.pickle.text("length");
    dcp.pickle.integer(static_cast<std::int64_t>(bytes));
  });
}

void CraftedDcp::item() {
  pickle.global(kDcpModule, "BytesStorageMetadata");
  pickle.tuple(0);
  pickle.new_object();
}

std::string CraftedDcp::metadata(const Fill& entries, const Fill& storage, const Fill& planner) {
  CraftedDcp dcp;
  dcp.object("Metadata", [&](CraftedDcp& inner) {
    inner.pickle.text("planner_data");
    inner.dict(planner);
    inner.pickle.text("state_dict_metadata");
    inner.dict(entries);
    inner.pickle.text("storage_data");
    inner.dict(storage);
  });
  return text_of(dcp.pickle.finish());
}

std::string torch_archive_of(const std::function<void(core::PickleWriter&)>& write) {
  core::PickleWriter pickle(2);
  write(pickle);
  return text_of(core::torch_archive(pickle.finish()));
}

}  // namespace troupe::apps

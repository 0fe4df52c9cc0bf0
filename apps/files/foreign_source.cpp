#include <filesystem>
#include <system_error>
#include <utility>

#include "apps/files/accelerate_source.hpp"
#include "apps/files/dcp_source.hpp"
#include "apps/files/safetensors_source.hpp"
#include "apps/files/source.hpp"
#include "apps/files/torch_file_source.hpp"
#include "apps/files/torch_shards_source.hpp"
#include "core/errors.hpp"
#include "core/interop/dcp_metadata.hpp"

namespace troupe::apps {

core::Result<Source> open_foreign(const std::string& path, bool check, actors::Links links) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::regular && path.ends_with(kSafetensorsSuffix)) {
    return open_safetensors_file(path);
  }
  if (status.type() == fs::file_type::regular && is_torch_file_name(path))
    return open_torch_file(path, check);
  if (status.type() == fs::file_type::directory) {
    if (fs::exists(fs::path(path) / core::kDcpMetadataName, error)) return open_dcp(path, check, links);
    if (holds_accelerate(path)) return open_accelerate(path, check, links);
    if (holds_torch_shards(path)) return open_torch_shards(path, check, links);
    if (holds_safetensors(path)) return open_safetensors(path, links);
  }
  return core::fail(core::Errc::not_found,
                    "{} is not a checkpoint of PyTorch or Hugging Face: expected a directory with {}, with "
                    "pytorch_model_fsdp_0, with files such as {} or with *.safetensors, or one file of "
                    "safetensors or torch.save",
                    path, core::kDcpMetadataName, kTorchShardsExample);
}

}  // namespace troupe::apps

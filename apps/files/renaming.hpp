#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/files/source.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Rules "OLD=NEW" that replace the beginning of a name; the first that fits counts.
class Renaming {
 public:
  /// Errc::invalid_argument for a rule without "=".
  static core::Result<Renaming> parse(std::span<const std::string> rules);

  /// The new name of what is called `original` in its files and `adopted` by now: by a rule for the former,
  /// or else by one for the latter.
  std::string operator()(const std::string& original, const std::string& adopted);
  bool is_empty() const { return rules_.empty(); }
  /// A sentence about the rules that have fitted nothing so far; empty: there are none.
  std::string unused() const;

 private:
  struct Rule {
    std::string from, to;
    bool is_used = false;
  };
  std::vector<Rule> rules_;
};

/// Calls every tensor what `name` says. Errc::invalid_argument for two tensors that get one name.
core::Result<void> rename_all(Source& source, const std::function<std::string(const std::string&)>& name);
core::Result<void> rename_all(Source& source, Renaming& rules);

/// What wrappers of modules add to names.
struct WrapperOptions {
  bool keep = false;               ///< all of them
  std::vector<std::string> parts;  ///< more parts of names to take out
};

/// Takes out of names, with a note, each dotted part that a wrapper of PyTorch put there: _orig_mod
/// (torch.compile), _checkpoint_wrapped_module, _fsdp_wrapped_module; and "module", which data parallelism
/// puts at the beginning, where all tensors of a model have it there.
core::Result<void> drop_wrappers(Source& source, const WrapperOptions& options);

/// Leaves only what is not optimizer state: by names ("optimizer.", "optim.state.w.exp_avg") and by
/// places (all that is below "optimizer" or "optim" in a nested state).
void keep_weights_only(Source& source);

/// Leaves out, by name, what PyTorch's files have and is carried as bytes (TorchPlace::carried).
void leave_out_carried(Source& source);

/// The container of a nested state that all tensors are below, such as "model."; empty when there is none.
std::string common_container(const Source& source);

}  // namespace troupe::apps

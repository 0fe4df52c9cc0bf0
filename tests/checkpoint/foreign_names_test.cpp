#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "tests/checkpoint/checkpoint_tool.hpp"

namespace troupe::apps {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// A file with tensors of one byte, the number of each.
std::string file_of(const std::vector<std::string>& names, const std::string& dtype = "U8") {
  Json header;
  std::string data;
  for (const auto& name : names) {
    header[name] = {{"dtype", dtype}, {"shape", {1}}, {"data_offsets", {data.size(), data.size() + 1}}};
    data += static_cast<char>(data.size());
  }
  const auto text = header.dump();
  std::string bytes;
  for (std::size_t i = 0; i < 8; ++i) bytes += static_cast<char>(text.size() >> (8 * i));
  return bytes + text + data;
}

class ForeignNames : public testing::Test {
 protected:
  /// Names after an import.
  std::set<std::string> imported(const std::vector<std::string>& names,
                                 const std::vector<std::string>& options = {}) {
    write_file(directory_.path("model.safetensors"), file_of(names));
    std::filesystem::remove_all(directory_.path("out"));
    std::vector<std::string> command{"import", directory_.path("model.safetensors"), directory_.path("out")};
    command.insert(command.end(), options.begin(), options.end());
    run_ = run_checkpoint(command);
    std::set<std::string> found;
    if (run_.exit_code != 0) return found;
    for (const auto& tensor : manifest_at(directory_.path("out/step_00000000")).tensors)
      found.insert(tensor.key);
    return found;
  }

  ScratchFolder directory_;
  Output run_;
};

TEST_F(ForeignNames, HaveNoPartsOfWrappers) {
  EXPECT_THAT(imported({"_orig_mod.a", "layers.0._orig_mod.b", "layers.0._checkpoint_wrapped_module.c",
                        "_fsdp_wrapped_module.layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.d"}),
              ElementsAre("a", "layers.0.b", "layers.0.c", "layers.0.d"));
  EXPECT_THAT(run_.err,
              HasSubstr("taken out of names, as wrappers put it there: _checkpoint_wrapped_module (2 names), "
                        "_fsdp_wrapped_module (1 names), _orig_mod (2 names)"));
}

TEST_F(ForeignNames, LoseDataParallelismsModuleWhereAllHaveIt) {
  EXPECT_THAT(imported({"module.a", "module.module.b"}), ElementsAre("a", "module.b"));
  EXPECT_THAT(imported({"_orig_mod.module.a", "module._orig_mod.b"}), ElementsAre("a", "b"));
}

TEST_F(ForeignNames, KeepAModuleThatSomeHave) {
  EXPECT_THAT(imported({"module.a", "b"}), ElementsAre("b", "module.a"));
  EXPECT_THAT(imported({"head.module.a", "head.module.b"}), ElementsAre("head.module.a", "head.module.b"));
  EXPECT_THAT(imported({"modules.a", "modules.b"}), ElementsAre("modules.a", "modules.b"));
  EXPECT_THAT(run_.err, Not(HasSubstr("wrappers")));
}

TEST_F(ForeignNames, StayAsTheyAreWhenAskedTo) {
  EXPECT_THAT(imported({"_orig_mod.a", "module.b"}, {"--keep-wrappers"}),
              ElementsAre("_orig_mod.a", "module.b"));
}

TEST_F(ForeignNames, LoseMorePartsWhenAskedTo) {
  EXPECT_THAT(imported({"base_layer.a", "x.base_layer.b", "base_layer_2.c"}, {"--drop-part", "base_layer"}),
              ElementsAre("a", "base_layer_2.c", "x.b"));
}

TEST_F(ForeignNames, AreNotLostAltogether) {
  EXPECT_THAT(imported({"_orig_mod", "a"}), ElementsAre("_orig_mod", "a"));
}

TEST_F(ForeignNames, ThatWouldBeOneAreRefused) {
  imported({"a._orig_mod.w", "a.w"});

  EXPECT_EQ(run_.exit_code, 2);
  EXPECT_THAT(run_.err, HasSubstr("two tensors would be called 'a.w'"));
  EXPECT_THAT(run_.err, HasSubstr("--keep-wrappers"));
}

TEST_F(ForeignNames, ComeBackWithWhatWrappersPutThere) {
  ASSERT_EQ(run_checkpoint({"import", golden("interop/fsdp"), directory_.path("own")}).exit_code, 0);
  ASSERT_EQ(run_checkpoint({"export", directory_.path("own"), directory_.path("dcp"), "--to", "dcp",
                            "--optimizer", "as-is", "--rename", "model.=model._orig_mod."})
                .exit_code,
            0);
  write_file(directory_.path("dcp/__9_0.distcp"), "");

  const Output run =
      run_checkpoint({"export", directory_.path("dcp"), directory_.path("model"), "--to", "huggingface"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("__9_0.distcp"));
  const auto index = Json::parse(read_file(directory_.path("model/model.safetensors.index.json")));
  EXPECT_EQ(index["weight_map"].size(), 2U) << "nothing of the optimizer: " << index;
}

TEST_F(ForeignNames, OfUnsupportedTypesAreNamedAsNoDamage) {
  for (const std::string type : {"F8_E8M0", "F8_E4M3FNUZ", "TYPE_OF_2030"}) {
    write_file(directory_.path("f.safetensors"), file_of({"scale"}, type));

    const Output run = run_checkpoint({"show", directory_.path("f.safetensors")});

    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("its element type " + type));
    const Output none = run_checkpoint({"import", directory_.path("f.safetensors"), directory_.path("none")});
    EXPECT_EQ(none.exit_code, 2);
    EXPECT_THAT(none.err, HasSubstr("no tensor that can be imported"));
  }
}

}  // namespace
}  // namespace troupe::apps

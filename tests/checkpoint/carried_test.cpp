#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/interop/crc32.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/torch_archive.hpp"
#include "tests/checkpoint/checkpoint_tool.hpp"
#include "tests/checkpoint/crafted_dcp.hpp"

namespace troupe::apps {
namespace {

using core::DType;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Bytes = std::vector<std::byte>;

std::span<const std::byte> bytes_in(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// An archive of a tensor whose bytes count up from `first`.
std::string archive_of(const core::TorchDType& dtype, const core::Shape& shape, int first) {
  const auto writer = core::TorchTensorWriter::create(dtype, shape).value();
  Bytes elements;
  for (std::uint64_t i = 0; i < writer.data_bytes(); ++i)
    elements.push_back(static_cast<std::byte>(first + static_cast<int>(i)));
  return text_of(writer.head()) + text_of(elements) + text_of(writer.tail(core::crc32(elements)));
}

/// A checkpoint of PyTorch with a complex matrix in two parts, factors of mx blocks, weights and an object.
class CarriedThings : public testing::Test {
 protected:
  CarriedThings() {
    const auto complex = core::torch_dtype_from("complex64").value();
    const auto factors = core::torch_dtype_from("float8_e8m0fnu").value();
    const auto weights = core::torch_dtype(DType::f32);
    add({.key = "model.rotation", .dtype = DType::u8, .shape = {5, 3, 8}, .carried = "complex64"}, complex,
        {{{0, 0, 0}, {3, 3, 8}}, {{3, 0, 0}, {2, 3, 8}}});
    add({.key = "model.scale", .dtype = DType::u8, .shape = {4}, .carried = "float8_e8m0fnu"}, factors,
        {{{0}, {4}}});
    add({.key = "model.weight", .shape = {2, 2}}, weights, {{{0, 0}, {2, 2}}});
    object_ = torch_archive_of([](core::PickleWriter& pickle) {
      pickle.global("pathlib", "PurePosixPath");
      pickle.text("of/a/class");
      pickle.tuple(1);
      pickle.reduce();
    });
    metadata_.items.push_back({"trainer.path", {0, data_.size(), object_.size()}, {"trainer", "path"}});
    data_ += object_;
    metadata_.files = {"__0_0.distcp"};
    std::filesystem::create_directories(path("dcp"));
    write_file(path("dcp/__0_0.distcp"), data_);
    write_file(path("dcp/.metadata"), text_of(core::encode_dcp_metadata(metadata_).value()));
  }

  std::string path(const std::string& name) const { return directory_.path(name); }

  void add(core::DcpTensor tensor, const core::TorchDType& dtype, const std::vector<core::Box>& boxes) {
    for (const auto& box : boxes) {
      auto extent = box.extent;
      if (dtype.has_axis()) extent.pop_back();
      const auto archive = archive_of(dtype, extent, static_cast<int>(box.offset[0]) * 24);
      tensor.chunks.push_back({box, {0, data_.size(), archive.size()}});
      data_ += archive;
    }
    metadata_.tensors.push_back(std::move(tensor));
  }

  /// The elements of a tensor, whatever its chunks.
  static std::string elements_of(const std::string& directory, const std::string& key) {
    const auto metadata = core::parse_dcp_metadata(bytes_in(read_file(directory + "/.metadata"))).value();
    for (const auto& tensor : metadata.tensors) {
      if (tensor.key != key) continue;
      std::string elements;
      for (const auto& chunk : tensor.chunks) {
        const auto file = read_file(directory + "/" + metadata.files[chunk.place.file]);
        const auto archive = file.substr(chunk.place.offset, chunk.place.bytes);
        const auto stored = core::dcp_chunk_elements(tensor, chunk, bytes_in(archive), true).value();
        elements += text_of(stored.stored);
      }
      return tensor.carried + core::to_string(tensor.shape) + elements;
    }
    return "";
  }

  static std::string object_of(const std::string& directory) {
    const auto metadata = core::parse_dcp_metadata(bytes_in(read_file(directory + "/.metadata"))).value();
    if (metadata.items.size() != 1 || metadata.items[0].path != core::KeyPath{"trainer", "path"}) return "";
    const auto& place = metadata.items[0].place;
    return read_file(directory + "/" + metadata.files[place.file]).substr(place.offset, place.bytes);
  }

  ScratchFolder directory_;
  core::DcpMetadata metadata_;
  std::string data_, object_;
};

TEST_F(CarriedThings, ComeBackWithTheirBytesHoweverTheyWereCut) {
  for (const std::string ranks : {"1", "7"}) {
    const auto own = path("own" + ranks), back = path("back" + ranks);
    const auto import = run_checkpoint({"import", path("dcp"), own, "--mesh", ranks});
    EXPECT_THAT(import.err, AllOf(HasSubstr("carried as bytes: 'model.rotation', as Troupe has no complex64"),
                                  HasSubstr("carried unread: 'trainer.path'"), Not(HasSubstr("left out"))));

    ASSERT_EQ(run_checkpoint({"export", own, back, "--to", "dcp"}).exit_code, 0);

    for (const auto* key : {"model.rotation", "model.scale", "model.weight"})
      EXPECT_EQ(elements_of(back, key), elements_of(path("dcp"), key)) << key;
    EXPECT_EQ(object_of(back), object_);
  }
}

TEST_F(CarriedThings, AreLeftOutByNameWithoutAPlace) {
  ASSERT_EQ(run_checkpoint({"import", path("dcp"), path("own")}).exit_code, 0);

  const auto model = run_checkpoint({"export", path("own"), path("model"), "--to", "huggingface"});

  EXPECT_EQ(model.exit_code, 0);
  EXPECT_THAT(model.err, AllOf(HasSubstr("left out 'model.rotation': it is a complex64 of PyTorch"),
                               HasSubstr("left out 'trainer.path': it is a value of PyTorch")));
  EXPECT_THAT(read_file(path("model/model.safetensors.index.json")), Not(HasSubstr("rotation")));
}

}  // namespace
}  // namespace troupe::apps

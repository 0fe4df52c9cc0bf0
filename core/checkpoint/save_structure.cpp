#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/checkpoint/json_cursor.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/values/json_text.hpp"

namespace troupe::core {

namespace {

SaveStructure::Tensor read_tensor_structure(JsonCursor& cursor) {
  SaveStructure::Tensor tensor;
  cursor.expect("[");
  tensor.key = cursor.string();
  cursor.expect(",");
  const auto name = cursor.string();
  if (auto dtype = dtype_from_name(name)) {
    tensor.dtype = *dtype;
  } else {
    cursor.complain(dtype.error().message);
  }
  cursor.expect(",");
  tensor.shape = cursor.sizes();
  if (auto good = check_shape(tensor.shape); !good) cursor.complain(good.error().message);
  if (cursor.skip(",")) {
    tensor.home = static_cast<std::uint32_t>(cursor.number(UINT32_MAX));
    if (tensor.home == 0) cursor.complain("a home is 0 where it is not left out");
  }
  cursor.expect("]");
  return tensor;
}

SavePiece read_piece(JsonCursor& cursor, const std::vector<SaveStructure::Tensor>& tensors) {
  SavePiece piece;
  cursor.expect("[");
  piece.tensor = static_cast<std::uint32_t>(cursor.number(UINT32_MAX));
  cursor.expect(",");
  piece.box.offset = cursor.sizes();
  cursor.expect(",");
  piece.box.extent = cursor.sizes();
  cursor.expect("]");
  if (!cursor.is_good()) return piece;
  if (piece.tensor >= tensors.size()) {
    cursor.complain("a piece belongs to no tensor");
  } else if (const auto& tensor = tensors[piece.tensor]; !piece.box.lies_in(tensor.shape)) {
    cursor.complain("the piece " + to_string(piece.box) + " does not lie in tensor '" + tensor.key +
                    "' of shape " + to_string(tensor.shape));
  }
  return piece;
}

std::string text_of(const SaveStructure& structure, bool with_homes) {
  std::string text = "{\"tensors\":[";
  std::string_view before = "[";
  for (const auto& tensor : structure.tensors) {
    text += before;
    append_string(text, tensor.key);
    text += ',';
    append_string(text, name_of(tensor.dtype));
    text += ',';
    append_sizes(text, tensor.shape);
    if (with_homes && tensor.home != 0) {
      text += ',';
      append_number(text, tensor.home);
    }
    text += ']';
    before = ",[";
  }
  text += "],\"pieces\":[";
  before = "[";
  for (const auto& piece : structure.pieces) {
    text += before;
    append_number(text, piece.tensor);
    text += ',';
    append_sizes(text, piece.box.offset);
    text += ',';
    append_sizes(text, piece.box.extent);
    text += ']';
    before = ",[";
  }
  text += "]}";
  return text;
}

}  // namespace

std::uint64_t SaveStructure::bytes_of(const SavePiece& piece) const {
  return static_cast<std::uint64_t>(piece.box.elements()) * size_of(tensors[piece.tensor].dtype);
}

std::string to_text(const SaveStructure& structure) {
  return text_of(structure, true);
}

std::string layout_text(const SaveStructure& structure) {
  return text_of(structure, false);
}

std::uint64_t layout_hash(const SaveStructure& structure) {
  return hash64(layout_text(structure));
}

Result<SaveStructure> parse_structure(std::string_view text) {
  JsonCursor cursor(text);
  SaveStructure structure;
  cursor.expect("{\"tensors\":[");
  if (!cursor.skip("]")) {
    do structure.tensors.push_back(read_tensor_structure(cursor));
    while (cursor.skip(","));
    cursor.expect("]");
  }
  cursor.expect(",\"pieces\":[");
  if (!cursor.skip("]")) {
    do structure.pieces.push_back(read_piece(cursor, structure.tensors));
    while (cursor.skip(","));
    cursor.expect("]");
  }
  cursor.expect("}");
  cursor.expect_end();
  if (cursor.is_good()) return structure;
  return fail(Errc::corrupt, "the structure of a save does not parse: {}", cursor.complaint());
}

}  // namespace troupe::core

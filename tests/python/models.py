"""Small models and their training, in plain PyTorch and over Troupe."""

import hashlib

import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy

LANES = 4

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
# transformers imports classes when they are first asked for: once here, and not in every child.
LLAMA, LLAMA_CONFIG = transformers.LlamaForCausalLM, transformers.LlamaConfig
MIXTURE, MIXTURE_CONFIG = getattr(transformers, "Qwen3MoeForCausalLM", None), getattr(transformers, "Qwen3MoeConfig", None)


def llama(**more):
    torch.manual_seed(3)
    config = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
              "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
              "initializer_range": 0.1, **more}
    return LLAMA(LLAMA_CONFIG(**config))


def mixture(**more):
    """Qwen3-MoE: 4 experts, 2 for each token."""
    torch.manual_seed(3)
    config = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24, "head_dim": 8,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4,
              "num_experts_per_tok": 2, "norm_topk_prob": True, "initializer_range": 0.1, **more}
    return MIXTURE(MIXTURE_CONFIG(**config))


def chats(step, lane):
    """Tokens and labels [2, 16]: sums in characters, such as 40+7=47, of which the answers are learned; lanes with an
    even number have few targets."""
    draw = torch.Generator().manual_seed(step * 1000 + lane)
    tokens, labels = torch.zeros(2, 16, dtype=torch.long), torch.full((2, 16), -100)
    for row in range(2):
        left, right = torch.randint(10**(1 + lane % 2 * 3), (2,), generator=draw).tolist()
        question, answer = f"{left}+{right}=", f"{left + right}"
        text = torch.tensor([ord(letter) - 32 for letter in question + answer])
        tokens[row, :len(text)] = text
        labels[row, len(question):len(text)] = text[len(question):]
    return tokens, labels


def sum_of_losses(model, step, lane):
    """The sum over targets, and their number."""
    tokens, labels = chats(step, lane)
    logits = model(input_ids=tokens).logits
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return loss, int((labels[:, 1:] != -100).sum())


class Classifier(nn.Module):
    """With what Llama lacks: biases, LayerNorm, attention of PyTorch's own, and a parameter of no axes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.project = nn.Linear(12, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.project(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.scale * x.mean(dim=1))


def mean_loss(model, step, lane):
    draw = torch.Generator().manual_seed(step * 1000 + lane)
    x = torch.randn(8, 5, 12, generator=draw)
    return cross_entropy(model(x), x.mean(dim=1)[:, :10].argmax(dim=1))


def plain(model, loss_of, steps, optimizer, clip=1.0, lanes=LANES):
    """One process, and every lane of a step in turn: the loss of each step."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        total, weights = 0.0, 0
        for lane in range(lanes):
            found = loss_of(model, step, lane)
            loss, weight = found if isinstance(found, tuple) else (found, 1)
            loss.backward()
            total, weights = total + loss.item(), weights + weight
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= weights
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(total / weights)
    return losses


def bits(state):
    """A hash of a state dictionary."""
    found = hashlib.sha256()
    for name in sorted(state):
        found.update(name.encode())
        found.update(state[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def train(trainer, loss_of, until):
    """Up to that step: the losses, in all their bits."""
    losses = []
    while trainer.next_step < until:
        step = trainer.next_step
        losses.append(trainer.train_step(lambda lane: loss_of(trainer.model, step, lane)).loss)
    return losses


def largest_difference(state, expected):
    return max((state[name].float() - expected[name].float()).abs().max().item() for name in expected)

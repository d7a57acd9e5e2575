"""A layer put together: blocks inlined, roles filled in by a strategy, everything checked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dsx.errors import NotationError, SpecError, UnknownNameError, did_you_mean
from dsx.graph.checks import check_axes, check_operator, defined_through_itself, parts_in_all
from dsx.graph.expressions import names
from dsx.graph.layer import OUTPUT, PANELS, Argument, Layer, Operator, Tensor
from dsx.graph.lexer import Place
from dsx.graph.match import Distribution, Unmatchable, match, ordered
from dsx.graph.notation import (
    FOLLOWS,
    Dim,
    LayerDefinition,
    LayerText,
    OperatorText,
    Role,
    Settings,
    StrategyText,
    TensorText,
    UseText,
)
from dsx.graph.operators import OperatorKind
from dsx.graph.options import check_known, selected
from dsx.graph.use import declared, modified, renamed, results

# Of a layer with its blocks inlined. Packaged ones have up to 40 operators, 60 tensors, 10 defined dimensions and 6
# blocks; what is derived of an operator is looked for in all others, so that ten times as many take some seconds.
_MOST_OPERATORS, _MOST_TENSORS, _MOST_DIMENSIONS, MOST_BLOCKS = 400, 1_000, 100, 100
# Integers and names in the size of a dimension with the definitions of its parts put in; in packaged ones up to 11.
_MOST_PARTS = 1_000

NOTHING_SET = Settings()
FindBlock = Callable[[str, Place], LayerDefinition]


def build_layer(
    definition: LayerDefinition,
    strategy: StrategyText | None,
    table: dict[str, OperatorKind],
    find_block: FindBlock,
    chosen: Settings = NOTHING_SET,
    inherited: Settings = NOTHING_SET,
) -> Layer:
    """Put the layer of a definition together under `strategy`; `find_block` gives the definition of a used block.

    `chosen` is set for this layer, which must know it; `inherited`, and what the strategy sets, where it is known.
    Raises NotationError with file, line and column, InputError for `chosen` that the layer does not know.
    """
    settings = chosen | inherited | (strategy.settings if strategy else NOTHING_SET)
    builder = _Builder(strategy, table, find_block, settings)
    text = selected(definition, settings)
    scope = builder.inline(text, "", {})
    definitions = [definition, *builder.used]
    check_known(chosen, definitions)
    if not builder.inputs:
        raise NotationError(f"{text.kind} {text.name!r} has no 'input'", text.file, 1, 1)
    operators = _kept_for_all(builder.operators)
    consumed = {arg.tensor for op in operators for arg in op.arguments}
    made = [name for op in operators for name in op.outputs]
    outputs = (scope[OUTPUT],) if OUTPUT in scope else tuple(name for name in made if name not in consumed)
    return Layer(
        name=f"{text.name}[{chosen}]" if str(chosen) else text.name,
        strategy=strategy.name if strategy else "",
        definitions=builder.definitions,
        tensors=builder.tensors,
        operators=tuple(operators),
        inputs=tuple(builder.inputs),
        outputs=outputs,
        rules=strategy.rules if strategy else (),
        panelled=any(op.panelled for op in operators),
        options={name: name in settings.options for known in definitions for name in known.options},
        blocks={name: block for known in definitions for name, block in known.parameters.items()}
        | {name: block for name, block in settings.blocks if any(name in known.parameters for known in definitions)},
    )


def block_of(use: UseText, find_block: FindBlock) -> LayerDefinition:
    """Return the definition of the block that a line uses; raises InputError if there is none."""
    try:
        return find_block(use.block, use.place)
    except UnknownNameError as error:
        if use.parameter:
            raise SpecError(f"block parameter {use.parameter!r}: {error}") from None
        raise use.place.error(str(error)) from None


def _kept_for_all(operators: list[Operator]) -> list[Operator]:
    """Drop the mark ~ where another operator keeps the same copy for its backward: then it is there."""
    kept = {
        (arg.tensor, arg.distribution)
        for op in operators
        for name, arg in zip(op.kind.arguments, op.arguments, strict=False)
        if name in op.kind.saved and not arg.made_again and not op.panelled
    }
    return [
        replace(
            op,
            arguments=tuple(
                replace(arg, made_again=arg.made_again and (arg.tensor, arg.distribution) not in kept)
                for arg in op.arguments
            ),
        )
        for op in operators
    ]


class _Builder:
    """Collects the tensors and operators of a layer while its blocks are inlined."""

    def __init__(
        self,
        strategy: StrategyText | None,
        table: dict[str, OperatorKind],
        find_block: FindBlock,
        settings: Settings,
    ) -> None:
        self.strategy, self.table, self.find_block, self.settings = strategy, table, find_block, settings
        # A strategy has panels if its rules limit them; a layer that stands alone may use them freely.
        rule_names = {
            name for rule in (strategy.rules if strategy else ()) for name in names(rule.left) | names(rule.right)
        }
        self.has_panels = strategy is None or PANELS in rule_names
        self.definitions: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.inputs: list[str] = []
        self.used: list[LayerDefinition] = []  # each block as often as it is used
        self.read: set[str] = set()  # tensors that something read
        self.roles: dict[str, str] = {}  # role -> the one that it is where the strategy does not give it
        self.inside: list[LayerText] = []  # the texts being inlined, outermost first
        self.kernels = 0
        self.regions = 0
        self.again: tuple[str, int] | None = None  # the region that the block being inlined is in

    def inline(self, text: LayerText, prefix: str, bound: dict[str, str], modifier: str = "") -> dict[str, str]:
        """Add the operators of `text`, used with `modifier`; returns the scope: local name -> tensor name."""
        for letter, expr in text.definitions.items():
            if self.definitions.setdefault(letter, expr) != expr:
                raise text.defined_at[letter].error(
                    f"dimension {letter!r} of {text.name!r} is defined differently elsewhere"
                )
        self.check_definitions(text)
        self.roles |= text.roles
        scope: dict[str, str] = {}
        for tensor in (*text.inputs, *text.weights):
            if tensor.name in scope:
                raise tensor.place.error(f"{tensor.name!r} is declared twice")
            if tensor in text.weights:
                scope[tensor.name] = self.declare(tensor, prefix, weight=True, tied=tensor.name in text.tied)
            else:
                outer = bound.get(tensor.name)
                scope[tensor.name] = self.enter(tensor, prefix, outer, data=tensor.name in text.data)
        offset = self.kernels
        self.kernels += len({op.fuse for op in text.body if isinstance(op, OperatorText) and op.fuse})
        regions = self.regions
        self.regions += len({entry.again for entry in text.body if entry.again})
        outer = self.again
        latest = next(iter(scope.values()), None) if text.inputs else None
        self.inside.append(text)
        for entry in text.body:
            self.again = self.region(entry, outer, regions)
            if isinstance(entry, UseText):
                latest = self.use(modified(entry, modifier), prefix, scope, latest)
            else:
                self.operate(modified(entry, modifier), prefix, scope, offset)
                latest = scope.get(OUTPUT, latest)
        self.inside.pop()
        self.again = outer
        return scope

    def check_definitions(self, text: LayerText) -> None:
        """Raise unless the dimensions, of which `text` brings some, can have sizes, and not too many parts."""
        if len(self.definitions) > _MOST_DIMENSIONS:
            place = [*text.defined_at.values()][-1]
            raise place.error(f"more than {_MOST_DIMENSIONS} dimensions are defined in one layer")
        if circle := defined_through_itself(self.definitions):
            place = next(place for letter, place in text.defined_at.items() if letter in circle)
            raise place.error(f"dimension {circle[0]!r} is defined through itself: {' -> '.join(circle)}")
        parts = parts_in_all(self.definitions)
        for letter, place in text.defined_at.items():
            if parts[letter] > _MOST_PARTS:
                raise place.error(
                    f"the size of {letter!r} is made of {parts[letter]:,} numbers and dimensions, with their own "
                    f"definitions put in; at most {_MOST_PARTS:,} are"
                )

    def region(self, entry: OperatorText | UseText, outer: tuple[str, int] | None, offset: int) -> Any:
        """Return the region that a line is in: its own text's, or the one that its block is used in."""
        if not entry.again:
            return outer
        if outer:
            raise entry.place.error(
                f"region {entry.again[0]!r} is used inside region {outer[0]!r}; regions do not nest"
            )
        return entry.again[0], entry.again[1] + offset

    def enter(self, tensor: TensorText, prefix: str, outer: str | None, data: bool = False) -> str:
        """Declare an input, or tie it to the tensor `outer` in the distribution that it states."""
        if outer is None:
            name = self.declare(tensor, prefix, weight=False, data=data)
            self.inputs.append(name)
            return name
        stated = Distribution(self.dims(tensor))
        if self.tensors[outer].distribution == stated:
            return outer
        argument = self.argument(TensorText(outer, tensor.dims, (), False, tensor.place), {outer: outer})
        name = self.declare(tensor, prefix, weight=False)
        view = OperatorKind("view", ("x",), shape="view", linear="each", rearranges=True)
        self.operators.append(Operator(view, "", (argument,), (name,), None, False, tensor.place, self.again))
        return name

    def use(self, use: UseText, prefix: str, scope: dict[str, str], latest: str | None) -> str:
        definition = block_of(use, self.find_block)
        if any((text.file, text.name) == (definition.file, definition.name) for text in self.inside):
            raise use.place.error(f"block {definition.name!r} uses itself")
        self.used.append(definition)
        if len(self.used) > MOST_BLOCKS:
            raise use.place.error(f"more than {MOST_BLOCKS} blocks are used in one layer, one inside another or not")
        block = selected(definition, self.settings)
        count = sum(used.name == block.name for used in self.used)
        inputs = [tensor.name for tensor in block.inputs]
        bound: dict[str, str] = {}
        for inner, outer in use.bindings.items():
            if inner == OUTPUT:
                continue
            if inner not in inputs:
                raise use.place.error(f"block {block.name!r} has no input {inner!r}{did_you_mean(inner, inputs)}")
            if outer not in scope:
                raise use.place.error(self.unknown(outer, scope))
            bound[inner] = scope[outer]
        free = [name for name in inputs if name not in bound]
        if latest is not None and free:
            if len(free) > 1:
                raise use.place.error(f"block {block.name!r} has the inputs {', '.join(free)}: bind all but one")
            bound[free[0]] = latest
        self.read |= {*bound.values()}
        made = use.bindings.get(OUTPUT, OUTPUT)
        self.check_read(made, scope, use.place)
        result = OUTPUT
        if self.shares_names(block, made, prefix, bound):
            block, result = renamed(block, made), made
        else:
            prefix = f"{prefix}{block.name}{count if count > 1 else ''}."
        inner = self.inline(block, prefix, bound, use.modifier)
        if result not in inner:
            raise use.place.error(f"block {block.name!r} makes no tensor 'output'")
        scope[made] = inner[result]
        return inner[result]

    def unknown(self, name: str, scope: dict[str, str]) -> str:
        """Return what is said of a tensor that nothing above makes."""
        if name in self.inside[-1].left_out:
            return f"no tensor {name!r} above: {self.inside[-1].left_out[name]}"
        return f"no tensor {name!r} above{did_you_mean(name, scope)}"

    def check_read(self, name: str, scope: dict[str, str], place: Place) -> None:
        """Raise where a name is assigned again before anything reads what it stands for."""
        if name in scope and scope[name] not in self.read:
            raise place.error(f"{name!r} is made again before anything reads it: one of the two is of no use")

    def shares_names(self, block: LayerText, made: str, prefix: str, bound: dict[str, str]) -> bool:
        """Return whether a block that a block uses needs no prefix of its own: its names are free there."""
        if self.inside[-1].kind != "block" or results(block) > 1:
            return False
        own = declared(renamed(block, made)) - {name for name, outer in bound.items() if self.fits(block, name, outer)}
        taken = {name.removeprefix(prefix) for name in self.tensors if name.startswith(prefix)}
        for text in self.inside:
            taken |= declared(text) - {made}
        return made not in declared(block) - {OUTPUT} and not own & taken

    def fits(self, block: LayerText, name: str, outer: str) -> bool:
        """Return whether an input of a block takes the tensor `outer` as it lies."""
        (tensor,) = (tensor for tensor in block.inputs if tensor.name == name)
        return self.tensors[outer].distribution == Distribution(self.dims(tensor))

    def operate(self, line: OperatorText, prefix: str, scope: dict[str, str], offset: int) -> None:
        if line.kind not in self.table:
            hint = did_you_mean(line.kind, self.table)
            raise line.place.error(f"no operator {line.kind!r}{hint} (known: {', '.join(sorted(self.table))})")
        kind = self.table[line.kind]
        if line.modifier and not (line.modifier in kind.work or (line.modifier == PANELS and kind.panels)):
            known = [*kind.work, *([PANELS] if kind.panels else [])]
            raise line.place.error(f"{line.kind} takes no {{{line.modifier}}}{did_you_mean(line.modifier, known)}")
        arguments = tuple(self.argument(argument, scope) for argument in line.arguments)
        outputs = [(out, Distribution(self.dims(out), ordered(set(out.partial) - {FOLLOWS}))) for out in line.outputs]
        partial = check_operator(
            kind, [(arg.distribution, arg.place) for arg in arguments], outputs, self.definitions, line.place
        )
        for tensor, stated in outputs:
            self.check_read(tensor.name, scope, tensor.place)
            scope[tensor.name] = self.add(tensor, prefix, Distribution(stated.dims, partial), weight=False)
        fuse = (prefix + line.fuse[0], line.fuse[1] + offset) if line.fuse else None
        panelled = line.modifier == PANELS and self.has_panels
        names_made = tuple(scope[tensor.name] for tensor in line.outputs)
        made = Operator(kind, line.modifier, arguments, names_made, fuse, panelled, line.place, self.again)
        self.operators.append(made)
        if len(self.operators) > _MOST_OPERATORS:
            raise line.place.error(f"more than {_MOST_OPERATORS} operators in one layer, those of its blocks included")

    def argument(self, written: TensorText, scope: dict[str, str]) -> Argument:
        """Resolve an argument and check that its distribution can be reached."""
        if written.name not in scope:
            raise written.place.error(self.unknown(written.name, scope))
        tensor = self.tensors[scope[written.name]]
        self.read.add(tensor.name)
        if written.dims is None:
            return Argument(tensor.name, tensor.distribution, written.made_again, written.place)
        if FOLLOWS in written.partial:
            raise written.place.error("'@*' stands for the axes of a result; an argument states its own")
        wanted = Distribution(self.dims(written), ordered(set(written.partial)))
        have = [dim.letter for dim in tensor.distribution.dims]
        want = [dim.letter for dim in wanted.dims]
        if have != want:
            raise written.place.error(
                f"{written.name!r} has the dimensions [{', '.join(have)}] and is taken as [{', '.join(want)}]: "
                "a dimension does not match; 'view' renames, merges and splits"
            )
        check_axes(written, wanted)
        try:
            match(tensor.distribution, wanted)
        except Unmatchable as why:
            raise written.place.error(f"{written.name!r}: {why}") from None
        return Argument(tensor.name, wanted, written.made_again, written.place)

    def declare(self, tensor: TensorText, prefix: str, weight: bool, data: bool = False, tied: bool = False) -> str:
        if tensor.partial:
            raise tensor.place.error(f"{tensor.name!r} is given from outside and cannot be a partial sum")
        name = self.add(tensor, prefix, Distribution(self.dims(tensor)), weight)
        self.tensors[name] = replace(self.tensors[name], data=data, tied=tied)
        return name

    def add(self, tensor: TensorText, prefix: str, distribution: Distribution, weight: bool) -> str:
        name = prefix + tensor.name
        again = 2
        while name in self.tensors:  # a name that is assigned again
            name, again = f"{prefix}{tensor.name}.{again}", again + 1
        check_axes(tensor, distribution)
        self.tensors[name] = Tensor(name, distribution, weight)
        if len(self.tensors) > _MOST_TENSORS:
            raise tensor.place.error(f"more than {_MOST_TENSORS:,} tensors in one layer, those of its blocks included")
        return name

    def dims(self, tensor: TensorText) -> tuple[Dim, ...]:
        """Fill in the roles of a tensor's dimensions."""
        result: list[Dim] = []
        for item in tensor.dims or ():
            if isinstance(item, Role):
                if self.strategy is None:
                    raise item.place.error(f"role ${item.name} needs a strategy")
                given = self.strategy.roles.get(item.name) or self.strategy.roles.get(self.roles.get(item.name, ""))
                if given is None:
                    hint = did_you_mean(item.name, self.strategy.roles)
                    raise item.place.error(f"strategy {self.strategy.name!r} gives no role {item.name!r}{hint}")
                item = Dim(item.letter or given.letter, given.axes)
            result.append(item)
        letters = [dim.letter for dim in result]
        for letter in letters:
            if letters.count(letter) > 1:
                raise tensor.place.error(
                    f"{tensor.name!r} has the dimension {letter!r} twice; "
                    "a dimension divided in two ways needs two letters"
                )
        return tuple(result)

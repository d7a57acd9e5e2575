"""Builds a layer: inlines its blocks, fills in the roles that the strategy gives, and checks every line."""

from collections.abc import Callable
from dataclasses import replace

from dsx.errors import NotationError, SpecError, UnknownNameError, did_you_mean
from dsx.notation.expressions import Expression, expanded_parts
from dsx.notation.operators import OperatorKind
from dsx.notation.phases import PRE_TRAINING, with_constants
from dsx.notation.selection import check_known, declared, modified, renamed, results, selected
from dsx.notation.sharded_layer import (
    OUTPUT,
    PANELS,
    Argument,
    Distribution,
    Layer,
    Operator,
    Tensor,
    Unmatchable,
    check_axes,
    check_operator,
    defined_through_itself,
    match,
    ordered,
)
from dsx.notation.syntax import (
    FOLLOWS,
    Dim,
    LayerDefinition,
    OperatorSyntax,
    Place,
    RegionPath,
    Role,
    SelectedLayer,
    Settings,
    Strategy,
    TensorSyntax,
    UseSyntax,
)

# Limits of a layer with its blocks inlined. Packaged layers have up to 40 operators, 60 tensors, 10 defined dimensions
# and 6 blocks. Derivation compares every operator with all others, so a layer at the limits takes some seconds.
_MOST_OPERATORS, _MOST_TENSORS, _MOST_DIMENSIONS, MOST_BLOCKS = 400, 1_000, 100, 100
# Integers and names in the size of a dimension, with the definitions of its parts substituted; packaged: up to 11.
_MOST_PARTS = 1_000

NOTHING_SET = Settings()
FindBlock = Callable[[str, Place], LayerDefinition]


def build_layer(
    definition: LayerDefinition,
    strategy: Strategy | None,
    table: dict[str, OperatorKind],
    find_block: FindBlock,
    chosen: Settings = NOTHING_SET,
    inherited: Settings = NOTHING_SET,
) -> Layer:
    """Build the layer of a definition under `strategy`; `find_block` returns the definition of a used block.

    The layer or one of its blocks must declare the settings in `chosen`. Those in `inherited`, and those of the
    strategy, take effect where they are declared. Raises NotationError with file, line and column, and InputError
    for settings in `chosen` that nothing declares.
    """
    settings = chosen | inherited | (strategy.settings if strategy else NOTHING_SET)
    builder = _LayerBuilder(strategy, table, find_block, settings)
    source = selected(definition, settings)
    scope = builder.inline(source, "", {})
    definitions = [definition, *builder.used]
    check_known(chosen, definitions)
    if not builder.inputs:
        raise NotationError(f"{source.kind} {source.name!r} has no 'input'", source.file, 1, 1)
    operators = _kept_for_all(builder.operators)
    consumed = {arg.tensor for op in operators for arg in op.arguments}
    produced = [name for op in operators for name in op.outputs]
    outputs = (scope[OUTPUT],) if OUTPUT in scope else tuple(name for name in produced if name not in consumed)
    distributions = [tensor.distribution for tensor in builder.tensors.values()]
    distributions += [argument.distribution for op in operators for argument in op.arguments]
    defaults = {name: block for declaring in definitions for name, block in declaring.parameters.items()}
    layer = Layer(
        name=f"{source.name}[{chosen}]" if str(chosen) else source.name,
        strategy=strategy.name if strategy else "",
        definitions=builder.definitions,
        tensors=builder.tensors,
        operators=tuple(operators),
        inputs=tuple(builder.inputs),
        outputs=outputs,
        axes=ordered({axis for distribution in distributions for axis in distribution.axes}),
        rules=strategy.rules if strategy else (),
        panelled=any(op.panelled for op in operators),
        options={name: name in settings.options for declaring in definitions for name in declaring.options},
        blocks=defaults | {name: block for name, block in settings.blocks if name in defaults},
    )
    return with_constants(layer, PRE_TRAINING)


def block_of(use: UseSyntax, find_block: FindBlock) -> LayerDefinition:
    """Return the definition of the block, or layer, that a ``use`` line names; raises InputError if there is none."""
    try:
        definition = find_block(use.block, use.place)
    except UnknownNameError as error:
        if use.parameter:
            raise SpecError(f"block parameter {use.parameter!r}: {error}") from None
        raise use.place.error(str(error)) from None
    if definition.kind != use.kind:
        raise use.place.error(f"{use.block!r} is not a {use.kind}")
    return definition


def _kept_for_all(operators: list[Operator]) -> list[Operator]:
    """Drop the mark ~ where another operator keeps the same copy: the backward then need not regather it."""
    kept = {
        (arg.tensor, arg.distribution)
        for op in operators
        for name, arg in zip(op.kind.arguments, op.arguments, strict=False)
        if name in op.kind.saved and not arg.regathered and not op.panelled
    }
    return [
        replace(
            op,
            arguments=tuple(
                replace(arg, regathered=arg.regathered and (arg.tensor, arg.distribution) not in kept)
                for arg in op.arguments
            ),
        )
        for op in operators
    ]


class _LayerBuilder:
    """Inlines the blocks of a layer, and collects its tensors and operators."""

    def __init__(
        self, strategy: Strategy | None, table: dict[str, OperatorKind], find_block: FindBlock, settings: Settings
    ) -> None:
        self.strategy, self.table, self.find_block, self.settings = strategy, table, find_block, settings
        # A strategy has panels if its rules mention them; a layer without a strategy may use them freely.
        self.has_panels = strategy is None or any(PANELS in rule.names for rule in strategy.rules)
        self.definitions: dict[str, Expression] = {}
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.inputs: list[str] = []
        self.used: list[LayerDefinition] = []  # a block once for each use
        self.read: set[str] = set()  # tensors that some operator or block reads
        self.roles: dict[str, str] = {}  # role -> role that is its default where the strategy does not give it
        self.inside: list[SelectedLayer] = []  # the layer and blocks being inlined, outermost first
        self.kernels = 0
        self.num_regions = 0
        self.regions: RegionPath = ()  # the regions around the line being read

    def inline(self, source: SelectedLayer, prefix: str, bound: dict[str, str], modifier: str = "") -> dict[str, str]:
        """Add the operators of `source`, used with `modifier`; return the scope: local name -> tensor name."""
        for letter, expr in source.definitions.items():
            if self.definitions.setdefault(letter, expr) != expr:
                raise source.defined_at[letter].error(
                    f"dimension {letter!r} of {source.name!r} is defined differently elsewhere"
                )
        self.check_definitions(source)
        self.roles |= source.roles
        scope: dict[str, str] = {}
        for tensor in (*source.inputs, *source.weights):
            if tensor.name in scope:
                raise tensor.place.error(f"{tensor.name!r} is declared twice")
            if tensor in source.weights:
                scope[tensor.name] = self.declare(tensor, prefix, weight=True, tied=tensor.name in source.tied)
            else:
                outer = bound.get(tensor.name)
                scope[tensor.name] = self.enter(tensor, prefix, outer, data=tensor.name in source.data)
        offset = self.kernels
        self.kernels += len({op.fuse for op in source.body if isinstance(op, OperatorSyntax) and op.fuse})
        offset_of_regions, outer = self.num_regions, self.regions
        self.num_regions += len({region for entry in source.body for region in entry.regions})
        latest = next(iter(scope.values()), None) if source.inputs else None
        self.inside.append(source)
        for entry in source.body:
            for name, _ in entry.regions:
                if name in dict(outer):
                    raise entry.place.error(
                        f"region {name!r} is used inside region {name!r}; a region is not part of itself"
                    )
            # The regions around the use of the block, and those of its own definition.
            self.regions = (*outer, *((name, number + offset_of_regions) for name, number in entry.regions))
            if isinstance(entry, UseSyntax):
                latest = self.use(modified(entry, modifier), prefix, scope, latest)
            else:
                self.operate(modified(entry, modifier), prefix, scope, offset)
                latest = scope.get(OUTPUT, latest)
        self.inside.pop()
        self.regions = outer
        return scope

    def check_definitions(self, source: SelectedLayer) -> None:
        """Raise if a dimension is defined through itself or from too many parts; `source` defines the latest ones."""
        if len(self.definitions) > _MOST_DIMENSIONS:
            place = [*source.defined_at.values()][-1]
            raise place.error(f"one layer defines more than {_MOST_DIMENSIONS} dimensions")
        if cycle := defined_through_itself(self.definitions):
            place = next(place for letter, place in source.defined_at.items() if letter in cycle)
            raise place.error(f"dimension {cycle[0]!r} is defined through itself: {' -> '.join(cycle)}")
        parts = expanded_parts(self.definitions)
        for letter, place in source.defined_at.items():
            if parts[letter] > _MOST_PARTS:
                raise place.error(
                    f"with all definitions substituted, the size of {letter!r} has {parts[letter]:,} numbers and "
                    f"dimensions; at most {_MOST_PARTS:,} are allowed"
                )

    def enter(self, tensor: TensorSyntax, prefix: str, outer: str | None, data: bool = False) -> str:
        """Declare an input, or bind it to the tensor `outer` in the distribution that it states."""
        if outer is None:
            name = self.declare(tensor, prefix, weight=False, data=data)
            self.inputs.append(name)
            return name
        distribution = Distribution(self.dims(tensor))
        if self.tensors[outer].distribution == distribution:
            return outer
        argument = self.argument(TensorSyntax(outer, tensor.dims, (), False, tensor.place), {outer: outer})
        name = self.declare(tensor, prefix, weight=False)
        view = OperatorKind("view", ("x",), shape="view", linear="each", rearranges=True)
        self.operators.append(Operator(view, "", (argument,), (name,), None, False, tensor.place, self.regions))
        return name

    def use(self, use: UseSyntax, prefix: str, scope: dict[str, str], latest: str | None) -> str:
        definition = block_of(use, self.find_block)
        if any((around.file, around.name) == (definition.file, definition.name) for around in self.inside):
            raise use.place.error(f"block {definition.name!r} uses itself")
        self.used.append(definition)
        if len(self.used) > MOST_BLOCKS:
            raise use.place.error(f"one layer uses more than {MOST_BLOCKS} blocks, nested ones included")
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
        if latest is not None and len(free) > 1:
            raise use.place.error(f"block {block.name!r} has the inputs {', '.join(free)}: bind all but one")
        if latest is not None and free:
            bound[free[0]] = latest
        self.read |= {*bound.values()}
        result_name = use.bindings.get(OUTPUT, OUTPUT)
        self.check_read(result_name, scope, use.place)
        result = OUTPUT
        if self.shares_names(block, result_name, prefix, bound):
            block, result = renamed(block, result_name), result_name
        else:
            prefix = f"{prefix}{block.name}{count if count > 1 else ''}."
        inner = self.inline(block, prefix, bound, use.modifier)
        if result not in inner:
            raise use.place.error(f"block {block.name!r} makes no tensor 'output'")
        scope[result_name] = inner[result]
        return inner[result]

    def unknown(self, name: str, scope: dict[str, str]) -> str:
        """Return the message for a tensor that no line above makes."""
        if name in self.inside[-1].left_out:
            return f"no tensor {name!r} above: {self.inside[-1].left_out[name]}"
        return f"no tensor {name!r} above{did_you_mean(name, scope)}"

    def check_read(self, name: str, scope: dict[str, str], place: Place) -> None:
        """Raise where a name is assigned again before anything reads its value."""
        if name in scope and scope[name] not in self.read:
            raise place.error(
                f"{name!r} is assigned again before anything reads it: one of the two lines has no effect"
            )

    def shares_names(self, block: SelectedLayer, result: str, prefix: str, bound: dict[str, str]) -> bool:
        """Return whether a nested block needs no prefix of its own, since its names are free in the outer block."""
        if self.inside[-1].kind != "block" or results(block) > 1:
            return False
        shared = {name for name, outer in bound.items() if self.fits(block, name, outer)}
        taken = {name.removeprefix(prefix) for name in self.tensors if name.startswith(prefix)}
        for around in self.inside:
            taken |= declared(around) - {result}
        return result not in declared(block) - {OUTPUT} and not (declared(renamed(block, result)) - shared) & taken

    def fits(self, block: SelectedLayer, name: str, outer: str) -> bool:
        """Return whether an input of a block takes the tensor `outer` without redistribution."""
        (tensor,) = (tensor for tensor in block.inputs if tensor.name == name)
        return self.tensors[outer].distribution == Distribution(self.dims(tensor))

    def operate(self, line: OperatorSyntax, prefix: str, scope: dict[str, str], offset: int) -> None:
        if line.kind not in self.table:
            hint = did_you_mean(line.kind, self.table)
            raise line.place.error(f"no operator {line.kind!r}{hint} (known: {', '.join(sorted(self.table))})")
        kind = self.table[line.kind]
        if line.modifier and not (line.modifier in kind.modifiers or (line.modifier == PANELS and kind.panels)):
            modifiers = [*kind.modifiers, *([PANELS] if kind.panels else [])]
            raise line.place.error(f"{line.kind} takes no {{{line.modifier}}}{did_you_mean(line.modifier, modifiers)}")
        arguments = tuple(self.argument(argument, scope) for argument in line.arguments)
        outputs = [(out, Distribution(self.dims(out), ordered(set(out.partial) - {FOLLOWS}))) for out in line.outputs]
        partial = check_operator(
            kind, [(arg.distribution, arg.place) for arg in arguments], outputs, self.definitions, line.place
        )
        for tensor, distribution in outputs:
            self.check_read(tensor.name, scope, tensor.place)
            scope[tensor.name] = self.add(tensor, prefix, Distribution(distribution.dims, partial), weight=False)
        fuse = (prefix + line.fuse[0], line.fuse[1] + offset) if line.fuse else None
        panelled = line.modifier == PANELS and self.has_panels
        names_made = tuple(scope[tensor.name] for tensor in line.outputs)
        operator = Operator(kind, line.modifier, arguments, names_made, fuse, panelled, line.place, self.regions)
        self.operators.append(operator)
        if len(self.operators) > _MOST_OPERATORS:
            raise line.place.error(f"one layer has more than {_MOST_OPERATORS} operators, those of its blocks included")

    def argument(self, written: TensorSyntax, scope: dict[str, str]) -> Argument:
        """Resolve an argument, and check that collectives lead to its distribution."""
        if written.name not in scope:
            raise written.place.error(self.unknown(written.name, scope))
        tensor = self.tensors[scope[written.name]]
        self.read.add(tensor.name)
        if written.dims is None:
            return Argument(tensor.name, tensor.distribution, written.regathered, written.place)
        if FOLLOWS in written.partial:
            raise written.place.error("'@*' stands for the axes of a result; an argument states its own")
        consumed = Distribution(self.dims(written), ordered(set(written.partial)))
        have = [dim.letter for dim in tensor.distribution.dims]
        want = [dim.letter for dim in consumed.dims]
        if have != want:
            raise written.place.error(
                f"{written.name!r} has the dimensions [{', '.join(have)}] and is read as [{', '.join(want)}]: "
                "a dimension does not match; 'view' renames, merges and splits"
            )
        check_axes(written, consumed)
        try:
            match(tensor.distribution, consumed)
        except Unmatchable as why:
            raise written.place.error(f"{written.name!r}: {why}") from None
        return Argument(tensor.name, consumed, written.regathered, written.place)

    def declare(self, tensor: TensorSyntax, prefix: str, weight: bool, data: bool = False, tied: bool = False) -> str:
        if tensor.partial:
            raise tensor.place.error(f"{tensor.name!r} is an input or a weight and cannot be a partial sum")
        name = self.add(tensor, prefix, Distribution(self.dims(tensor)), weight)
        self.tensors[name] = replace(self.tensors[name], data=data, tied=tied)
        return name

    def add(self, tensor: TensorSyntax, prefix: str, distribution: Distribution, weight: bool) -> str:
        name = prefix + tensor.name
        assignment = 2
        while name in self.tensors:  # a name that is assigned again
            name, assignment = f"{prefix}{tensor.name}.{assignment}", assignment + 1
        check_axes(tensor, distribution)
        self.tensors[name] = Tensor(name, distribution, weight)
        if len(self.tensors) > _MOST_TENSORS:
            raise tensor.place.error(f"one layer has more than {_MOST_TENSORS:,} tensors, those of its blocks included")
        return name

    def dims(self, tensor: TensorSyntax) -> tuple[Dim, ...]:
        """Fill in the roles of a tensor's dimensions."""
        result: list[Dim] = []
        for item in tensor.dims or ():
            if isinstance(item, Role):
                if self.strategy is None:
                    raise item.place.error(f"role ${item.name} needs a strategy")
                roles = self.strategy.roles
                dim_of_role = roles.get(item.name) or roles.get(self.roles.get(item.name, ""))
                if dim_of_role is None:
                    hint = did_you_mean(item.name, roles)
                    raise item.place.error(f"strategy {self.strategy.name!r} gives no role {item.name!r}{hint}")
                item = Dim(item.letter or dim_of_role.letter, dim_of_role.axes)
            result.append(item)
        letters = [dim.letter for dim in result]
        if twice := [letter for letter in letters if letters.count(letter) > 1]:
            raise tensor.place.error(
                f"{tensor.name!r} has the dimension {twice[0]!r} twice; "
                "a dimension divided in two ways needs two letters"
            )
        return tuple(result)

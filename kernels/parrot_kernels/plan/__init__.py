"""What a decode step has to do, as work lists of fixed capacity."""

from parrot_kernels.plan.planner import CPU_COSTS as CPU_COSTS
from parrot_kernels.plan.planner import Capacity as Capacity
from parrot_kernels.plan.planner import Costs as Costs
from parrot_kernels.plan.planner import Plan as Plan
from parrot_kernels.plan.planner import PlanError as PlanError
from parrot_kernels.plan.planner import Planner as Planner
from parrot_kernels.plan.planner import Shape as Shape
from parrot_kernels.plan.planner import TreeError as TreeError

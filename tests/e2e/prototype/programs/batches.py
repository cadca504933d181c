"""In the style of the version before: batches, preallocated outputs, defined functions, annotations."""

import asyncio
import sys

import parrot as P

vm = P.VirtualMachine(os_http_addr=sys.argv[1])


def functions(count):
    summarize = vm.define_function(
        func_name="summarize",
        func_body="""Write a one-sentence summary of the following:
{{text}}
SUMMARY:{{summary}}""",
        cache_prefix=False,
        params=[
            P.Parameter(name="text", typ=P.ParamType.INPUT_LOC),
            P.Parameter(
                name="summary",
                typ=P.ParamType.OUTPUT_LOC,
                sampling_config=P.SamplingConfig(ignore_tokenizer_eos=True, max_gen_length=8),
                dispatch_annotation=P.DispatchAnnotation(requests_num_upperbound=16),
            ),
        ],
    )
    holes = "\n".join("{{" + f"part_{i}" + "}}" for i in range(count))
    combine = vm.define_function(
        func_name=None,
        func_body=f"The summaries:{holes}Combine them. Answer: {{{{summary}}}}",
        params=[P.Parameter(name=f"part_{i}", typ=P.ParamType.INPUT_LOC) for i in range(count)]
        + [P.Parameter("summary", P.ParamType.OUTPUT_LOC, P.SamplingConfig(max_gen_length=8))],
    )
    return summarize, combine


async def main(count):
    summarize, combine = functions(count)
    parts = [P.variable(name=f"output_{i}") for i in range(count)]
    vm.set_batch()
    for i, part in enumerate(parts):
        summarize(text=f"part {i}", summary=part)
    await vm.submit_batch()
    print("combined:", len(combine(*parts).get()) > 0)
    texts = await asyncio.gather(*[part.aget() for part in parts])
    print("parts:", len(texts))
    awaited = await summarize.ainvoke("one more")
    print("awaited:", len(await awaited.aget()) > 0)
    print("tokens:", vm.runtime_info.num_total_tokens > 0)


vm.run(main, args=[4])

with vm.running_scope():
    print("scope:", len(functions(1)[0]("Test").get()) > 0)

vm.set_global_env()
print("global:", len(functions(1)[0]("Test").get()) > 0)
